//! What a `tokenizer.json` may say, and the tokenizer that is built from it.
//!
//! The `tokenizers` crate trusts its files: there are ones on which it panics, aborts, or takes time and
//! memory without bound. So a file is read into the types of this module, which know the components that
//! tokenizers of Llama, Mistral, SmolLM and Qwen2 models are made of and nothing else; only what has passed
//! is handed to the crate, component by component.
//!
//! What holds for an accepted file: a text grows by a bounded factor on its way to tokens and back; it is
//! cut by few patterns, each from a list of ones that take linear time; an id is that of one token; merges
//! stay within the vocabulary; few tokens are put around a text. Not checked: whether the tokenizer is the
//! one that the model was trained with.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use tokenizers::decoders::{self, DecoderWrapper};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{self, NFC, NormalizerWrapper, Prepend, Replace};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::{self, PreTokenizerWrapper};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer as _, SplitDelimiterBehavior, Tokenizer,
    TokenizerBuilder,
};

use super::error::TokenizerError;
use super::special::MAX_SPECIAL_BYTES;
use super::vocab::MAX_TOKEN_BYTES;

/// Components of one kind that follow each other; known files have up to seven.
const MAX_COMPONENTS: usize = 16;
/// Bytes of all added tokens together.
const MAX_ADDED_BYTES: usize = 1 << 20;
/// Bytes of the token that stands for unknown characters.
const MAX_UNKNOWN_BYTES: usize = 64;
/// How many times as long normalisers may make a text, and decoders the texts of tokens. Llama 2 comes to 12:
/// a three-byte character in front and one for each space.
const MAX_GROWTH: usize = 16;
/// Tokens that may be put around a text.
const MAX_AROUND: usize = 16;
/// Bytes in UTF-8 that composed characters may have for one of the text's.
const NFC_GROWTH: usize = 3;
/// Bytes of U+FFFD, which stands for a byte that is no UTF-8.
const REPLACEMENT_GROWTH: usize = 3;
/// What SentencePiece writes for a space.
const META_SPACE: char = '▁';

/// The patterns that texts are cut by. Any other could take time that is not linear in the text.
const PATTERNS: &[&str] = &[
    // GPT-2, StarCoder.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    // Llama 3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Qwen2.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Mistral's Tekken, and with more digits its successors.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // GPT-4o.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // DeepSeek, which cuts by several.
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[一-龥ࠀ-一가-퟿]+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// How the texts of tokens stand for bytes, after the decoder of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    ByteAlphabet,
    Escaped,
    Plain,
}

/// What a file comes to.
#[derive(Debug)]
pub(super) struct HfFile {
    pub(super) tokenizer: Tokenizer,
    /// Tokens in front of a text, where special ones are added.
    pub(super) before: Vec<u32>,
    /// Tokens behind it.
    pub(super) behind: Vec<u32>,
    pub(super) spelling: Spelling,
}

/// The file. Settings of training, such as truncation and padding, are left out: a prompt must not be cut or
/// filled up.
#[derive(Deserialize)]
struct Json {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    post_processor: Option<PostProcessor>,
    decoder: Option<Decoder>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    #[serde(rename = "NFC")]
    Nfc,
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "default_use_regex")]
        use_regex: bool,
    },
    Metaspace(MetaspaceFields),
    Digits {
        individual_digits: bool,
    },
    Split {
        pattern: Pattern,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PostProcessor {
    Sequence {
        processors: Vec<PostProcessor>,
    },
    /// Changes where tokens are said to lie, not which there are.
    ByteLevel,
    TemplateProcessing {
        single: Vec<Piece>,
        special_tokens: HashMap<String, TemplateToken>,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Decoder {
    Sequence { decoders: Vec<Decoder> },
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace(MetaspaceFields),
    Replace { pattern: Pattern, content: String },
    Strip { content: char, start: usize, stop: usize },
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
struct MetaspaceFields {
    replacement: char,
    add_prefix_space: Option<bool>,
    prepend_scheme: Option<PrependScheme>,
    split: Option<bool>,
}

#[derive(Deserialize)]
enum Piece {
    Sequence { id: String },
    SpecialToken { id: String },
}

#[derive(Deserialize)]
struct TemplateToken {
    ids: Vec<u32>,
}

/// Byte-pair encoding. Null stands for a default in any of the optional fields.
#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    _kind: ModelKind,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// Old files do not say it.
#[derive(Deserialize, Default)]
enum ModelKind {
    #[default]
    #[serde(rename = "BPE")]
    Bpe,
}

/// A pair, or in old files a text with a space in between.
struct Merge(String, String);

const fn default_use_regex() -> bool {
    true
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, as a list or with a space in between")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                let halves = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) =
                    halves.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Merge(left.into(), right.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut halves: A) -> Result<Merge, A::Error> {
                let mut half =
                    |at| halves.next_element()?.ok_or_else(|| de::Error::invalid_length(at, &self));
                let (left, right) = (half(0)?, half(1)?);
                match halves.next_element::<de::IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(de::Error::invalid_length(3, &self)),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, TokenizerError> {
    Err(TokenizerError::HuggingFace(reason.into()))
}

/// What the crate refuses although this module did not.
fn refused(error: impl fmt::Display) -> TokenizerError {
    TokenizerError::HuggingFace(error.to_string())
}

/// Builds the tokenizer of a file.
///
/// # Errors
/// [`TokenizerError::HuggingFace`] with what is not supported or contradicts itself.
pub(super) fn read(json: &[u8]) -> Result<HfFile, TokenizerError> {
    let json: Json = serde_json::from_slice(json).map_err(refused)?;
    let mut tokens = Tokens::default();
    for (text, id) in &json.model.vocab {
        tokens.add(text, *id)?;
    }
    let around = Around::new(flat(json.post_processor)?)?;
    let decoders = flat(json.decoder)?;
    let spelling = spelling(&decoders);
    let built = TokenizerBuilder::<_, _, _, PostProcessorWrapper, _>::new()
        .with_normalizer(normalizer(flat(json.normalizer)?)?)
        .with_pre_tokenizer(pre_tokenizer(flat(json.pre_tokenizer)?)?)
        .with_decoder(decoder(decoders)?)
        .with_model(model(json.model)?)
        .build()
        .map_err(refused)?;
    let mut tokenizer = Tokenizer::from(built);
    add_tokens(&mut tokenizer, json.added_tokens, &mut tokens)?;
    if let Some(id) = around.ids().find(|id| !tokens.by_id.contains_key(id)) {
        return refuse(format!("the template has token {id}, which there is not"));
    }
    Ok(HfFile { tokenizer, before: around.before, behind: around.behind, spelling })
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

/// Adds tokens, each of which must get the id that the file gives it.
fn add_tokens(
    tokenizer: &mut Tokenizer,
    mut added: Vec<Added>,
    tokens: &mut Tokens,
) -> Result<(), TokenizerError> {
    // The crate numbers them in their order.
    added.sort_by_key(|token| token.id);
    let mut bytes = 0;
    for token in &added {
        tokens.add(&token.content, token.id)?;
        // The crate looks for each at every place of a text, so their length is a factor of its time; of a
        // normalised one it is the length that it has then.
        let mut text = NormalizedString::from(token.content.as_str());
        if let Some(normalizer) = tokenizer.get_normalizer()
            && token.normalized
            && token.content.len() <= MAX_SPECIAL_BYTES
        {
            normalizer.normalize(&mut text).map_err(refused)?;
        }
        let longest = text.get().len().max(token.content.len());
        bytes += longest;
        if longest > MAX_SPECIAL_BYTES || bytes > MAX_ADDED_BYTES {
            return refuse(format!(
                "the added token {} is longer than {MAX_SPECIAL_BYTES} bytes, or all are longer than {MAX_ADDED_BYTES}",
                token.id
            ));
        }
        if token.single_word || token.lstrip || token.rstrip {
            return refuse(format!(
                "the added token {:?} has `single_word`, `lstrip` or `rstrip`, which are not supported",
                token.content
            ));
        }
    }
    let parsed = added.iter().map(|token| {
        AddedToken::from(token.content.as_str(), token.special).normalized(token.normalized)
    });
    tokenizer.add_tokens(parsed.collect::<Vec<_>>()).map_err(refused)?;
    let differs = |token: &&Added| tokenizer.token_to_id(&token.content) != Some(token.id);
    match added.iter().find(differs) {
        Some(Added { id, content, .. }) => refuse(format!(
            "the added token {content:?} cannot have the id {id}: ids follow the vocabulary without a gap"
        )),
        None => Ok(()),
    }
}

/// A kind of component of which there are sequences.
trait Component: Sized {
    /// The parts of a sequence; another component comes back.
    fn parts(self) -> Result<Vec<Self>, Self>;
}

impl Component for Normalizer {
    fn parts(self) -> Result<Vec<Self>, Self> {
        match self {
            Normalizer::Sequence { normalizers } => Ok(normalizers),
            other => Err(other),
        }
    }
}

impl Component for PreTokenizer {
    fn parts(self) -> Result<Vec<Self>, Self> {
        match self {
            PreTokenizer::Sequence { pretokenizers } => Ok(pretokenizers),
            other => Err(other),
        }
    }
}

impl Component for PostProcessor {
    fn parts(self) -> Result<Vec<Self>, Self> {
        match self {
            PostProcessor::Sequence { processors } => Ok(processors),
            other => Err(other),
        }
    }
}

impl Component for Decoder {
    fn parts(self) -> Result<Vec<Self>, Self> {
        match self {
            Decoder::Sequence { decoders } => Ok(decoders),
            other => Err(other),
        }
    }
}

/// The components one after the other, without the sequences they came in.
fn flat<C: Component>(component: Option<C>) -> Result<Vec<C>, TokenizerError> {
    let mut flat = Vec::new();
    let mut left: Vec<C> = component.into_iter().collect();
    while let Some(next) = left.pop() {
        match next.parts() {
            Ok(parts) => left.extend(parts.into_iter().rev()),
            Err(single) => flat.push(single),
        }
    }
    if flat.len() > MAX_COMPONENTS {
        return refuse(format!("more than {MAX_COMPONENTS} components follow each other"));
    }
    Ok(flat)
}

/// How many times as long a text can become.
struct Growth(usize);

impl Growth {
    fn by(&mut self, factor: usize) -> Result<(), TokenizerError> {
        self.0 = self.0.saturating_mul(factor);
        if self.0 > MAX_GROWTH {
            return refuse(format!("a text could become more than {MAX_GROWTH} times as long"));
        }
        Ok(())
    }
}

/// A replacement of one text by another.
fn replace(
    pattern: Pattern,
    content: String,
    growth: &mut Growth,
) -> Result<Replace, TokenizerError> {
    match pattern {
        Pattern::String(pattern) if !pattern.is_empty() => {
            growth.by(content.len().div_ceil(pattern.len()).max(1))?;
            Replace::new(pattern, content).map_err(refused)
        }
        Pattern::String(_) => refuse("a `Replace` of an empty text is not supported"),
        Pattern::Regex(_) => refuse("a `Replace` by a pattern is not supported"),
    }
}

fn metaspace(fields: &MetaspaceFields) -> Result<Metaspace, TokenizerError> {
    if fields.replacement != META_SPACE {
        return refuse(format!("`Metaspace` with {:?} is not supported", fields.replacement));
    }
    let scheme = match fields.add_prefix_space {
        Some(false) => PrependScheme::Never,
        _ => fields.prepend_scheme.unwrap_or(PrependScheme::Always),
    };
    Ok(Metaspace::new(META_SPACE, scheme, fields.split.unwrap_or(true)))
}

fn normalizer(parts: Vec<Normalizer>) -> Result<Option<NormalizerWrapper>, TokenizerError> {
    let mut growth = Growth(1);
    let mut built = Vec::with_capacity(parts.len());
    for part in parts {
        built.push(match part {
            Normalizer::Nfc => {
                growth.by(NFC_GROWTH)?;
                NFC.into()
            }
            Normalizer::Prepend { prepend } => {
                // The text may be one byte between two special tokens.
                growth.by(1 + prepend.len())?;
                Prepend::new(prepend).into()
            }
            Normalizer::Replace { pattern, content } => {
                replace(pattern, content, &mut growth)?.into()
            }
            // `flat` leaves none.
            Normalizer::Sequence { .. } => continue,
        });
    }
    Ok((!built.is_empty()).then(|| normalizers::Sequence::new(built).into()))
}

fn pre_tokenizer(parts: Vec<PreTokenizer>) -> Result<Option<PreTokenizerWrapper>, TokenizerError> {
    // Each makes a text a few times as long.
    let respells = |part: &&PreTokenizer| {
        matches!(part, PreTokenizer::ByteLevel { .. } | PreTokenizer::Metaspace(_))
    };
    if parts.iter().filter(respells).count() > 1 {
        return refuse("more than one of `ByteLevel` and `Metaspace` is not supported");
    }
    let mut built = Vec::with_capacity(parts.len());
    for part in parts {
        built.push(match part {
            PreTokenizer::ByteLevel { add_prefix_space, use_regex } => {
                ByteLevel::new(add_prefix_space, true, use_regex).into()
            }
            PreTokenizer::Metaspace(fields) => metaspace(&fields)?.into(),
            PreTokenizer::Digits { individual_digits } => Digits::new(individual_digits).into(),
            PreTokenizer::Split { pattern, behavior, invert } => {
                let pattern = match pattern {
                    Pattern::String(text) if !text.is_empty() => SplitPattern::String(text),
                    Pattern::Regex(regex) if PATTERNS.contains(&regex.as_str()) => {
                        SplitPattern::Regex(regex)
                    }
                    Pattern::String(other) | Pattern::Regex(other) => {
                        return refuse(format!(
                            "a `Split` by the pattern {other:?} is not supported"
                        ));
                    }
                };
                Split::new(pattern, behavior, invert).map_err(refused)?.into()
            }
            PreTokenizer::Sequence { .. } => continue,
        });
    }
    Ok((!built.is_empty()).then(|| pre_tokenizers::sequence::Sequence::new(built).into()))
}

/// How tokens spell bytes, by what decodes them.
fn spelling(parts: &[Decoder]) -> Spelling {
    let is_escaped = |part: &Decoder| match part {
        Decoder::Metaspace(_) | Decoder::ByteFallback => true,
        // How newer files spell what `Metaspace` did.
        Decoder::Replace { pattern: Pattern::String(text), .. } => text.chars().eq([META_SPACE]),
        _ => false,
    };
    if parts.iter().any(|part| matches!(part, Decoder::ByteLevel)) {
        Spelling::ByteAlphabet
    } else if parts.iter().any(is_escaped) {
        Spelling::Escaped
    } else {
        Spelling::Plain
    }
}

fn decoder(parts: Vec<Decoder>) -> Result<Option<DecoderWrapper>, TokenizerError> {
    let mut growth = Growth(1);
    let mut built = Vec::with_capacity(parts.len());
    for part in parts {
        built.push(match part {
            Decoder::ByteLevel => {
                growth.by(REPLACEMENT_GROWTH)?;
                ByteLevel::default().into()
            }
            Decoder::ByteFallback => decoders::byte_fallback::ByteFallback::new().into(),
            Decoder::Fuse => decoders::fuse::Fuse::new().into(),
            Decoder::Metaspace(fields) => metaspace(&fields)?.into(),
            Decoder::Replace { pattern, content } => replace(pattern, content, &mut growth)?.into(),
            Decoder::Strip { stop: 1.., .. } => {
                return refuse("a `Strip` of the end of tokens is not supported");
            }
            Decoder::Strip { content, start, stop } => {
                decoders::strip::Strip::new(content, start, stop).into()
            }
            Decoder::Sequence { .. } => continue,
        });
    }
    Ok((!built.is_empty()).then(|| decoders::sequence::Sequence::new(built).into()))
}

/// The tokens around a text.
#[derive(Default)]
struct Around {
    before: Vec<u32>,
    behind: Vec<u32>,
}

impl Around {
    fn new(parts: Vec<PostProcessor>) -> Result<Self, TokenizerError> {
        let mut templates = parts.into_iter().filter_map(|part| match part {
            PostProcessor::TemplateProcessing { single, special_tokens } => {
                Some((single, special_tokens))
            }
            PostProcessor::ByteLevel | PostProcessor::Sequence { .. } => None,
        });
        let Some((single, special_tokens)) = templates.next() else { return Ok(Self::default()) };
        if templates.next().is_some() {
            return refuse("more than one template is not supported");
        }
        let mut pieces = single.split(|piece| matches!(piece, Piece::Sequence { id } if id == "A"));
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
    pieces: &[Piece],
    special_tokens: &HashMap<String, TemplateToken>,
) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = Vec::new();
    for piece in pieces {
        let token = match piece {
            Piece::SpecialToken { id } => special_tokens.get(id),
            Piece::Sequence { .. } => None,
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

fn model(model: Model) -> Result<BPE, TokenizerError> {
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
    let vocab = model.vocab;
    let known = |text: &str| match vocab.contains_key(text) {
        true => Ok(()),
        false => refuse(format!("the merges or `unk_token` have {text:?}, which there is not")),
    };
    let mut merged = String::new();
    for Merge(left, right) in &model.merges {
        known(left)?;
        known(right)?;
        merged.clear();
        merged.extend([left.as_str(), right.as_str()]);
        known(&merged)?;
    }
    model.unk_token.as_deref().map_or(Ok(()), known)?;
    // The crate keeps it once for each unknown character of a text.
    if model.unk_token.as_ref().is_some_and(|token| token.len() > MAX_UNKNOWN_BYTES) {
        return refuse(format!("the `unk_token` has more than {MAX_UNKNOWN_BYTES} bytes"));
    }
    let merges = model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
    let vocab: HashMap<_, _, _> = vocab.into_iter().collect();
    let mut bpe = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(model.fuse_unk.unwrap_or(false))
        .byte_fallback(model.byte_fallback.unwrap_or(false))
        .ignore_merges(model.ignore_merges.unwrap_or(false));
    if let Some(token) = model.unk_token {
        bpe = bpe.unk_token(token);
    }
    bpe.build().map_err(refused)
}
