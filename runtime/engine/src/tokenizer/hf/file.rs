//! From what a `tokenizer.json` says to the tokenizer that it describes.
//!
//! Anything but the known components is refused, and so is a file that could cost more than its size and
//! that of a text explain.
//!
//! What holds for an accepted file: a text grows by a bounded factor on its way to tokens and back; it is
//! cut by few patterns, each from a list of ones that take linear time; an id is that of one token; merges
//! stay within the vocabulary; few tokens are put around a text. Not checked: whether the tokenizer is the
//! one that the model was trained with.

use std::collections::{BTreeMap, HashMap};

use super::added::{AddedToken, AddedTokens};
use super::components::{self, Spelling, refuse};
use super::cut::Step;
use super::decode::DecodeStep;
use super::json;
use super::model::{Bpe, Parts, Settings, SubwordModel, Words};
use super::normalize::{Normalized, Normalizer};
use super::prefix::PrefixSpace;
use crate::tokenizer::TokenizerError;
use crate::tokenizer::merges::MergeTable;
use crate::tokenizer::special::MAX_SPECIAL_BYTES;
use crate::tokenizer::vocab::MAX_TOKEN_BYTES;

/// Bytes of all added tokens together.
const MAX_ADDED_BYTES: usize = 1 << 20;
/// Bytes of the token that stands for unknown characters.
const MAX_UNKNOWN_BYTES: usize = 64;
/// Characters of a word that may be cut into parts, which takes a look-up for each two of them.
const MAX_WORD_CHARS: usize = 1000;
/// Tokens that may be put around a text.
const MAX_AROUND: usize = 16;

/// What a file comes to.
#[derive(Debug)]
pub(super) struct HfFile {
    pub(super) normalizers: Vec<Normalizer>,
    pub(super) steps: Vec<Step>,
    pub(super) model: SubwordModel,
    pub(super) decoders: Vec<DecodeStep>,
    pub(super) added: AddedTokens,
    /// The texts of all tokens by id.
    pub(super) texts: HashMap<u32, String>,
    /// Tokens in front of a text, where special ones are added.
    pub(super) before: Vec<u32>,
    /// Tokens behind it.
    pub(super) behind: Vec<u32>,
    pub(super) spelling: Spelling,
}

impl HfFile {
    /// The token with this text.
    pub(super) fn token_id(&self, text: &str) -> Option<u32> {
        self.model.id(text).or_else(|| self.added.id(text))
    }
}

/// Builds the tokenizer of a file, with the space in front of texts that the configuration beside it asks for.
///
/// # Errors
/// [`TokenizerError::HuggingFace`] with what is not supported or contradicts itself.
pub(super) fn read(bytes: &[u8], prefix: Option<PrefixSpace>) -> Result<HfFile, TokenizerError> {
    let mut json: json::File = serde_json::from_slice(bytes)
        .map_err(|error| TokenizerError::HuggingFace(error.to_string()))?;
    if let Some(prefix) = prefix {
        prefix.apply(&mut json);
    }
    let mut tokens = Tokens::default();
    for (text, id) in &json.model.vocab {
        tokens.add(text, *id)?;
    }
    let template = TemplateProcessing::new(json.post_processor)?;
    let (decoders, spelling) = components::decoders(json.decoder)?;
    let normalizers = components::normalizers(json.normalizer)?;
    let steps = components::steps(json.pre_tokenizer)?;
    let model = model(json.model)?;
    let added = added_tokens(json.added_tokens, &normalizers, &model, &mut tokens)?;
    if let Some(id) = template.ids().find(|id| !tokens.by_id.contains_key(id)) {
        return refuse(format!("the template has token {id}, which there is not"));
    }
    Ok(HfFile {
        normalizers,
        steps,
        model,
        decoders,
        added,
        texts: tokens.by_id,
        before: template.before,
        behind: template.behind,
        spelling,
    })
}

/// The texts of all tokens by id.
#[derive(Default)]
struct Tokens {
    by_id: HashMap<u32, String>,
}

impl Tokens {
    fn add(&mut self, text: &str, id: u32) -> Result<(), TokenizerError> {
        if text.len() > MAX_TOKEN_BYTES {
            return refuse(format!("token {id} has more than {MAX_TOKEN_BYTES} bytes"));
        }
        match self.by_id.insert(id, text.into()) {
            Some(other) if other != text => {
                refuse(format!("token {id} is both {other:?} and {text:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// The added tokens. Ids that are not in the vocabulary follow it without a gap.
fn added_tokens(
    mut added: Vec<json::Added>,
    normalizers: &[Normalizer],
    model: &SubwordModel,
    tokens: &mut Tokens,
) -> Result<AddedTokens, TokenizerError> {
    added.sort_by_key(|token| token.id);
    let mut bytes = 0;
    let mut ids = HashMap::new();
    let mut built = BTreeMap::<u32, AddedToken>::new();
    let mut next = model.len();
    for token in added {
        let json::Added { id, content, single_word, lstrip, rstrip, normalized, special } = token;
        tokens.add(&content, id)?;
        let normalized = (normalized && content.len() <= MAX_SPECIAL_BYTES)
            .then(|| Normalized::new(normalizers, &content, true).text.into_owned());
        // What a text is searched for; the search may look that far ahead at each place.
        let longest = normalized.as_ref().map_or(0, String::len).max(content.len());
        bytes += longest;
        if longest > MAX_SPECIAL_BYTES || bytes > MAX_ADDED_BYTES {
            return refuse(format!(
                "the added token {id} is longer than {MAX_SPECIAL_BYTES} bytes, or all are longer than {MAX_ADDED_BYTES}"
            ));
        }
        if single_word || lstrip || rstrip {
            return refuse(format!(
                "the added token {content:?} has `single_word`, `lstrip` or `rstrip`, which are not supported"
            ));
        }
        if !content.is_empty() && normalized.as_ref().is_some_and(String::is_empty) {
            return refuse(format!(
                "nothing is left of the added token {content:?} once normalised"
            ));
        }
        let other = model.id(&content).or_else(|| ids.get(&content).copied());
        let follows = other.is_none() && !content.is_empty() && id as usize == next;
        if follows {
            next += 1;
            ids.insert(content.clone(), id);
        } else if other != Some(id) {
            return refuse(format!(
                "the added token {content:?} cannot have the id {id}: ids follow the vocabulary without a gap"
            ));
        }
        if !content.is_empty() {
            // If a file has it twice, the last one counts.
            let special = special || built.get(&id).is_some_and(|token| token.special);
            built.insert(id, AddedToken { text: content, special, normalized });
        }
    }
    AddedTokens::new(built)
}

/// The tokens that the template of single texts puts around a text.
#[derive(Default)]
struct TemplateProcessing {
    before: Vec<u32>,
    behind: Vec<u32>,
}

impl TemplateProcessing {
    fn new(component: Option<json::PostProcessor>) -> Result<Self, TokenizerError> {
        let parts = components::flat(component, |part| match part {
            json::PostProcessor::Sequence { processors } => Ok(processors),
            single => Err(single),
        })?;
        let mut templates = parts.into_iter().filter_map(|part| match part {
            json::PostProcessor::TemplateProcessing { single, special_tokens } => {
                Some((single, special_tokens))
            }
            json::PostProcessor::ByteLevel | json::PostProcessor::Sequence { .. } => None,
        });
        let Some((single, special_tokens)) = templates.next() else { return Ok(Self::default()) };
        if templates.next().is_some() {
            return refuse("more than one template is not supported");
        }
        let mut pieces =
            single.split(|piece| matches!(piece, json::Piece::Sequence { id } if id == "A"));
        let (Some(before), Some(behind), None) = (pieces.next(), pieces.next(), pieces.next())
        else {
            return refuse("the template of single texts must have the sequence A once");
        };
        Ok(Self { before: ids(before, &special_tokens)?, behind: ids(behind, &special_tokens)? })
    }

    fn ids(&self) -> impl Iterator<Item = &u32> {
        self.before.iter().chain(&self.behind)
    }
}

fn ids(
    pieces: &[json::Piece],
    special_tokens: &HashMap<String, json::TemplateToken>,
) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = Vec::new();
    for piece in pieces {
        let token = match piece {
            json::Piece::SpecialToken { id } => special_tokens.get(id),
            json::Piece::Sequence { .. } => None,
        };
        let Some(token) = token else {
            return refuse("the template of single texts has a piece that there is not");
        };
        if ids.len() + token.ids.len() > MAX_AROUND {
            return refuse(format!("a template of more than {MAX_AROUND} tokens is not supported"));
        }
        ids.extend(&token.ids);
    }
    Ok(ids)
}

fn model(model: json::JsonModel) -> Result<SubwordModel, TokenizerError> {
    match model.kind {
        json::ModelKind::Bpe => bpe(model).map(SubwordModel::Bpe),
        json::ModelKind::WordPiece => {
            let most_chars = model.max_input_chars_per_word.unwrap_or(100);
            if most_chars > MAX_WORD_CHARS {
                return refuse(format!(
                    "a `max_input_chars_per_word` above {MAX_WORD_CHARS} is not supported"
                ));
            }
            let prefix = model.continuing_subword_prefix.clone();
            let prefix = prefix.unwrap_or_else(|| "##".to_owned());
            words(model, Some(Parts { prefix, most_chars }))
        }
        json::ModelKind::WordLevel => words(model, None),
    }
}

fn words(model: json::JsonModel, parts: Option<Parts>) -> Result<SubwordModel, TokenizerError> {
    let unknown = model.unk_token.as_ref().and_then(|text| model.vocab.get(text)).copied();
    match unknown {
        Some(unknown) => Ok(SubwordModel::Words(Words::new(model.vocab, unknown, parts))),
        None => refuse("a vocabulary of words needs an `unk_token` that is in it"),
    }
}

fn bpe(model: json::JsonModel) -> Result<Bpe, TokenizerError> {
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return refuse("a `dropout` belongs to training and is not supported");
    }
    let affixes = [
        ("continuing_subword_prefix", model.continuing_subword_prefix),
        ("end_of_word_suffix", model.end_of_word_suffix),
    ];
    for (name, affix) in affixes {
        if affix.is_some_and(|affix| !affix.is_empty()) {
            return refuse(format!("a `{name}` is not supported"));
        }
    }
    let known = |text: &str| match model.vocab.get(text) {
        Some(id) => Ok(*id),
        None => refuse(format!("the merges or `unk_token` have {text:?}, which there is not")),
    };
    let Some(pairs) = &model.merges else { return refuse("missing field `merges`") };
    let mut merges = MergeTable::with_capacity(pairs.len());
    let mut merged = String::new();
    // Of a pair that is there twice the last one counts, so the last one is added first.
    for (rank, json::Merge(left, right)) in pairs.iter().enumerate().rev() {
        merged.clear();
        merged.extend([left.as_str(), right.as_str()]);
        merges.add(known(left)?, known(right)?, rank as u32, known(&merged)?);
    }
    let unknown = model.unk_token.as_deref().map(known).transpose()?;
    // A text may have as many of them as characters.
    if model.unk_token.is_some_and(|token| token.len() > MAX_UNKNOWN_BYTES) {
        return refuse(format!("the `unk_token` has more than {MAX_UNKNOWN_BYTES} bytes"));
    }
    let settings = Settings {
        unknown,
        fuse_unknown: model.fuse_unk.unwrap_or(false),
        byte_fallback: model.byte_fallback.unwrap_or(false),
        ignore_merges: model.ignore_merges.unwrap_or(false),
    };
    Ok(Bpe::new(model.vocab, merges, &settings))
}
