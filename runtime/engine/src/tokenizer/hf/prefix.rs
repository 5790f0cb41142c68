//! `add_prefix_space` of `tokenizer_config.json`: whether a text begins with a space that nobody wrote.
//!
//! `transformers` changes the tokenizer of a file by it where it knows the class, and so does this. Those of
//! Llama mark the space by a U+2581, in whichever way the file puts one there; those of GPT-2 and Qwen2 put a
//! space into the bytes. For other classes the file alone says it.

use serde_json::Value;

use super::cut::{META_SPACE, PrependScheme};
use super::json::{File, JsonDecoder, Metaspace, Normalizer, Pattern, PreTokenizer};

/// What the configuration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefixSpace {
    /// Whether a U+2581 is in front of a text.
    Marked(bool),
    /// Whether a space is, among the bytes.
    Bytes(bool),
}

impl PrefixSpace {
    /// What a `tokenizer_config.json` asks for, beside the `model_type` of a `config.json`.
    pub(super) fn of(config: &Value, model_type: &Value) -> Option<Self> {
        let add = config["add_prefix_space"].as_bool()?;
        let class = config["tokenizer_class"].as_str().unwrap_or_default();
        match (model_type.as_str().unwrap_or_default(), class.trim_end_matches("Fast")) {
            // The class that Mistral's files name is not the one of their tokenizer.
            ("mistral", _) => None,
            ("qwen2", _) | (_, "GPT2Tokenizer" | "Qwen2Tokenizer") => Some(Self::Bytes(add)),
            (_, "LlamaTokenizer") => Some(Self::Marked(add)),
            _ => None,
        }
    }

    /// Changes what a file says.
    pub(super) fn apply(self, file: &mut File) {
        match self {
            Self::Bytes(add) => each_step(&mut file.pre_tokenizer, &mut |step| {
                if let PreTokenizer::ByteLevel { add_prefix_space, .. } = step {
                    *add_prefix_space = add;
                }
            }),
            Self::Marked(add) => {
                let mut is_byte_level = false;
                each_step(&mut file.pre_tokenizer, &mut |step| {
                    is_byte_level |= matches!(step, PreTokenizer::ByteLevel { .. });
                });
                match add {
                    // Files of later models under the same class, which mark nothing.
                    _ if is_byte_level => {}
                    true => mark(file),
                    false => unmark(file),
                }
            }
        }
    }
}

/// Makes a U+2581 stand in front of a text.
fn mark(file: &mut File) {
    let mut is_marked = false;
    each_step(&mut file.pre_tokenizer, &mut |step| {
        if let PreTokenizer::Metaspace(fields) = step {
            if !prepends(fields) {
                (fields.add_prefix_space, fields.prepend_scheme) =
                    (None, Some(PrependScheme::First));
            }
            is_marked = true;
        }
    });
    let mut has_spaces = false;
    each_normalizer(&mut file.normalizer, &mut |normalizer| {
        is_marked |= matches!(normalizer, Normalizer::Prepend { .. });
        has_spaces |= matches!(normalizer, Normalizer::Replace { pattern: Pattern::String(from), .. } if from == " ");
        true
    });
    if is_marked || !has_spaces {
        return;
    }
    let step = PreTokenizer::Metaspace(Metaspace {
        replacement: META_SPACE,
        add_prefix_space: None,
        prepend_scheme: Some(PrependScheme::First),
        split: Some(false),
    });
    let steps = file.pre_tokenizer.take().into_iter().chain([step]).collect();
    file.pre_tokenizer = Some(PreTokenizer::Sequence { pretokenizers: steps });
    let strip = JsonDecoder::Strip { content: ' ', start: 1, stop: 0 };
    let mut strips = false;
    each_decoder(&mut file.decoder, &mut |decoder| {
        strips |= is_strip(decoder);
        true
    });
    if !strips && file.decoder.is_some() {
        let decoders = file.decoder.take().into_iter().chain([strip]).collect();
        file.decoder = Some(JsonDecoder::Sequence { decoders });
    }
}

/// Makes no U+2581 stand in front of a text, and none be taken away again.
fn unmark(file: &mut File) {
    let never = |fields: &mut Metaspace| {
        (fields.add_prefix_space, fields.prepend_scheme) = (None, Some(PrependScheme::Never));
    };
    each_step(&mut file.pre_tokenizer, &mut |step| {
        if let PreTokenizer::Metaspace(fields) = step {
            never(fields);
        }
    });
    each_normalizer(&mut file.normalizer, &mut |normalizer| {
        !matches!(normalizer, Normalizer::Prepend { .. })
    });
    each_decoder(&mut file.decoder, &mut |decoder| {
        if let JsonDecoder::Metaspace(fields) = decoder {
            never(fields);
        }
        !is_strip(decoder)
    });
}

fn prepends(fields: &Metaspace) -> bool {
    fields.add_prefix_space != Some(false) && fields.prepend_scheme != Some(PrependScheme::Never)
}

fn is_strip(decoder: &JsonDecoder) -> bool {
    matches!(decoder, JsonDecoder::Strip { content: ' ', .. })
}

fn each_step(step: &mut Option<PreTokenizer>, change: &mut dyn FnMut(&mut PreTokenizer)) {
    let mut left: Vec<&mut PreTokenizer> = step.iter_mut().collect();
    while let Some(step) = left.pop() {
        match step {
            PreTokenizer::Sequence { pretokenizers } => left.extend(pretokenizers),
            single => change(single),
        }
    }
}

/// Goes through normalisers; those of which `keep` is false go.
fn each_normalizer(all: &mut Option<Normalizer>, keep: &mut dyn FnMut(&mut Normalizer) -> bool) {
    let mut left: Vec<&mut Vec<Normalizer>> = Vec::new();
    match all {
        Some(Normalizer::Sequence { normalizers }) => left.push(normalizers),
        Some(single) => {
            let stays = keep(single);
            if !stays {
                *all = None;
            }
        }
        None => {}
    }
    while let Some(list) = left.pop() {
        list.retain_mut(|part| matches!(part, Normalizer::Sequence { .. }) || keep(part));
        left.extend(list.iter_mut().filter_map(|part| match part {
            Normalizer::Sequence { normalizers } => Some(normalizers),
            _ => None,
        }));
    }
}

/// Goes through decoders; those of which `keep` is false go.
fn each_decoder(all: &mut Option<JsonDecoder>, keep: &mut dyn FnMut(&mut JsonDecoder) -> bool) {
    let mut left: Vec<&mut Vec<JsonDecoder>> = Vec::new();
    match all {
        Some(JsonDecoder::Sequence { decoders }) => left.push(decoders),
        Some(single) => {
            let stays = keep(single);
            if !stays {
                *all = None;
            }
        }
        None => {}
    }
    while let Some(list) = left.pop() {
        list.retain_mut(|part| matches!(part, JsonDecoder::Sequence { .. }) || keep(part));
        left.extend(list.iter_mut().filter_map(|part| match part {
            JsonDecoder::Sequence { decoders } => Some(decoders),
            _ => None,
        }));
    }
}
