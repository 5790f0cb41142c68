//! The pre-tokenizers that models name in `tokenizer.ggml.pre`, as data.
//!
//! A pre-tokenizer is a list of stages. Each stage cuts every piece that the stage before left: matches of
//! its pattern become pieces, and so does the text between two matches. To add one, add a row to [`TABLE`].

/// What happens to the white space that no alternative of a pattern took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing: it is text between matches.
    None,
    /// `\s+(?!\S)|\s+`: a run in front of a word leaves its last character to the word.
    Run,
    /// As `Run`, for a pattern that took the newlines before, so that no run ends in one.
    RunAfterNewlines,
    /// As `RunAfterNewlines`, cut into pieces of 512, 256, ... 4, 2 and 1 characters.
    Cascade,
}

impl Tail {
    /// Whether a match whose last character is white space or not, a newline or not, is a run that the tail took:
    /// no other alternative ends in white space, but those that end in a newline.
    pub(super) fn took(self, is_space: bool, is_newline: bool) -> bool {
        match self {
            Self::None => false,
            Self::Run => is_space,
            Self::RunAfterNewlines | Self::Cascade => is_space && !is_newline,
        }
    }
}

/// One cut.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// A pattern over class codes (see the `unicode` module); `\s` and `\d` inside are ASCII.
    Classes(&'static str, Tail),
    /// As `Classes`, with Han apart from the other letters.
    HanClasses(&'static str, Tail),
    /// A pattern over the characters themselves.
    Text(&'static str),
    /// Runs of `\p{N}` end in groups of three, counted from the right; text in front joins the first group.
    DigitGroups,
    /// A cut in front of every group of three ASCII digits, counted from the right end of the run.
    Thousands,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`.
    pub(super) names: &'static [&'static str],
    pub(super) stages: &'static [Stage],
    /// A piece that is a token as a whole is not built by merges.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added when the metadata does not say.
    pub(super) add_bos: bool,
    /// Whether there is a BOS token when the metadata does not name one.
    pub(super) default_bos: bool,
    /// Tokens are plain UTF-8 with U+2581 for the space, not the byte alphabet.
    pub(super) plain_utf8: bool,
    /// Runs of newlines are looked up as a whole, and BOS is added whatever the metadata says.
    pub(super) gemma: bool,
}

const fn row(names: &'static [&'static str], stages: &'static [Stage]) -> PreTokenizer {
    PreTokenizer {
        names,
        stages,
        ignore_merges: false,
        add_bos: false,
        default_bos: true,
        plain_utf8: false,
        gemma: false,
    }
}

impl PreTokenizer {
    const fn ignore_merges(mut self) -> Self {
        self.ignore_merges = true;
        self
    }

    const fn add_bos(mut self) -> Self {
        self.add_bos = true;
        self
    }

    const fn no_default_bos(mut self) -> Self {
        self.default_bos = false;
        self
    }

    const fn plain_utf8(mut self) -> Self {
        self.plain_utf8 = true;
        self
    }

    const fn gemma(mut self) -> Self {
        self.gemma = true;
        self
    }

    /// The row for a name; the empty name is `default`.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        let name = if name.is_empty() { "default" } else { name };
        TABLE.iter().find(|row| row.names.contains(&name))
    }

    /// All names, comma-separated.
    pub(super) fn supported() -> String {
        TABLE.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", ")
    }
}

/// English contractions in either case.
macro_rules! contraction {
    () => {
        "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
    };
}

/// Letter runs with one optional leading character that is no letter, number or newline.
macro_rules! word {
    () => {
        r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}

/// Punctuation with an optional leading space, and newline runs.
macro_rules! rest {
    () => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    };
    ("/") => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    };
}

/// Words whose case changes end them, for the ASCII letters only: runs of not-lower then not-upper.
macro_rules! cased {
    ($marks:literal, $suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\xD2A-Z",
            $marks,
            r"]*[\xD2a-z",
            $marks,
            "]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\xD2A-Z",
            $marks,
            r"]+[\xD2a-z",
            $marks,
            "]*",
            $suffix,
        )
    };
}

const GPT2: Stage =
    Stage::Classes(r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+", Tail::Run);
const LLAMA3: Stage = Stage::Classes(
    concat!(contraction!(), word!(), r"|\p{N}{1,3}", rest!()),
    Tail::RunAfterNewlines,
);
const QWEN2: Stage =
    Stage::Classes(concat!(contraction!(), word!(), r"|\p{N}", rest!()), Tail::RunAfterNewlines);
const DIGIT: Stage = Stage::Classes(r"\p{N}", Tail::None);
const DIGITS_1_TO_3: Stage = Stage::Classes(r"\p{N}{1,3}", Tail::None);
const HAN_AND_KANA: Stage = Stage::Text(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+");
/// Han, Hangul and the blocks between, without the spaces among them.
const CJK: Stage = Stage::Text(r"[[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]&&\S]+");
const NEWLINE: Stage = Stage::Text(r"[\r\n]");
const LINES: Stage = Stage::Text(r"[^\n]+|\n+");
const SENTENCE_MARKS: Stage = Stage::Text(r" ?[^(\s|.,!?…。，、।۔،)]+");
/// ASCII punctuation glued to a word, words with marks, punctuation, newlines.
const DEEPSEEK3: Stage = Stage::Classes(
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+",
    Tail::RunAfterNewlines,
);

/// Letters of the scripts that have case.
macro_rules! cased_letters {
    () => {
        concat!(
            r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
            r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
            r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
            r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
            r"\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
            r"\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}",
            r"\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}",
            r"\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
            r"\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}",
            r"\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}",
            r"\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}",
            r"\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}",
            r"\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
            r"\u{1E900}-\u{1E943}",
        )
    };
}

/// Every known pre-tokenizer.
pub(super) const TABLE: &[PreTokenizer] = &[
    row(
        &["default"],
        &[
            Stage::Classes(r"[\p{P}$+<=>^~|]+", Tail::None),
            GPT2,
            Stage::Classes(r"\p{N}+", Tail::None),
            Stage::Text("[0-9][0-9][0-9]"),
        ],
    ),
    row(
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
    )
    .ignore_merges()
    .add_bos(),
    row(&["dbrx", "smaug-bpe"], &[LLAMA3]),
    row(&["chatglm-bpe"], &[LLAMA3]).no_default_bos(),
    row(&["glm4", "glm5"], &[LLAMA3]).no_default_bos().ignore_merges(),
    row(
        &["jais-2"],
        &[Stage::Classes(concat!(contraction!(), word!(), r"|\p{N}{1,3}", rest!()), Tail::Cascade)],
    ),
    row(
        &["minicpm5"],
        &[
            DIGITS_1_TO_3,
            Stage::Classes(
                concat!(contraction!(), word!(), r"|\p{N}+", rest!()),
                Tail::RunAfterNewlines,
            ),
        ],
    )
    .ignore_merges(),
    row(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    row(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[DIGIT, GPT2],
    ),
    row(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    row(&["laguna"], &[LINES, QWEN2]),
    row(
        &["qwen35"],
        &[Stage::Classes(
            concat!(
                contraction!(),
                r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
            ),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["ufakzeka"],
        &[Stage::Classes(
            concat!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}", rest!()),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Stage::Classes(
            concat!(contraction!(), word!(), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["seed-coder"],
        &[Stage::Classes(
            concat!(contraction!(), word!(), r"|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+"),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["exaone-moe"],
        &[Stage::Classes(
            concat!(
                contraction!(),
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
            ),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["tekken"],
        &[Stage::Classes(concat!(cased!("", ""), r"|\p{N}", rest!("/")), Tail::RunAfterNewlines)],
    )
    .ignore_merges()
    .add_bos(),
    row(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[Stage::Classes(
            concat!(cased!("", concat!("(?:", contraction!(), ")?")), r"|\p{N}{1,3}", rest!("/")),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["granite-embed-multi-97m"],
        &[Stage::Classes(
            concat!(
                cased!(r"\p{M}", concat!("(?:", contraction!(), ")?")),
                r"|\p{N}{1,3}",
                rest!("/")
            ),
            Tail::RunAfterNewlines,
        )],
    )
    .ignore_merges(),
    row(
        &["tiny_aya", "cohere2moe"],
        &[
            Stage::DigitGroups,
            Stage::Classes(
                concat!(
                    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:",
                    contraction!(),
                    r")?|\p{N}{1,3}",
                    rest!("/")
                ),
                Tail::RunAfterNewlines,
            ),
        ],
    ),
    row(
        &["youtu"],
        &[
            Stage::Text(concat!(
                r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
                r"|[！…“”‘’—：；，\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+",
                r"|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
            )),
            Stage::Classes(
                concat!(
                    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:",
                    contraction!(),
                    r")?|\p{N}",
                    rest!("/")
                ),
                Tail::RunAfterNewlines,
            ),
        ],
    )
    .ignore_merges(),
    row(
        &["kimi-k2"],
        &[Stage::HanClasses(
            concat!(
                r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\xD2A-Za-z]+(?:",
                contraction!(),
                r")?|\p{N}{1,3}",
                rest!()
            ),
            Tail::RunAfterNewlines,
        )],
    ),
    row(
        &["deepseek-llm"],
        &[
            NEWLINE,
            Stage::Text(concat!(r"\s?[", cased_letters!(), "]+")),
            Stage::Text(
                r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3001}-\u{3002}]+",
            ),
            Stage::Text(r"\s+$"),
            CJK,
            Stage::Classes(r"\p{N}+", Tail::None),
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            NEWLINE,
            Stage::Classes(r"\s?\p{L}+", Tail::None),
            Stage::Classes(r"\s?\p{P}+", Tail::None),
            CJK,
            DIGIT,
        ],
    ),
    row(
        &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        &[DIGITS_1_TO_3, HAN_AND_KANA, DEEPSEEK3],
    ),
    row(
        &["spark2_5"],
        &[
            DIGITS_1_TO_3,
            HAN_AND_KANA,
            Stage::Classes(
                r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]",
                Tail::Run,
            ),
            DIGIT,
        ],
    ),
    row(
        &["afmoe"],
        &[
            Stage::DigitGroups,
            Stage::Text(concat!(
                r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}",
                r"\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
            )),
            DEEPSEEK3,
        ],
    ),
    row(
        &["falcon"],
        &[Stage::Classes(r"[\p{P}$+<=>^~|`]+", Tail::None), GPT2, Stage::Text("[0-9][0-9][0-9]")],
    ),
    row(&["poro-chat", "bloom", "gpt3-finnish"], &[SENTENCE_MARKS]),
    row(&["viking"], &[SENTENCE_MARKS, DIGIT]),
    row(&["superbpe"], &[Stage::Classes(r"\p{N}+", Tail::None), Stage::Thousands]),
    row(
        &["chameleon"],
        &[
            Stage::Text("<sentinel:[0-9]+>"),
            Stage::Text("IMGIMG[A-I]{1,4}Z"),
            Stage::Text(r"[\t\n]|    |  "),
            DIGIT,
            Stage::Classes(r"[\p{P}!-/:-@\[-`{-~]", Tail::None),
            GPT2,
        ],
    )
    .add_bos(),
    row(&["gemma4", "granite-embed-multi-311m"], &[LINES]).plain_utf8().gemma(),
    row(&["sarvam-moe"], &[LINES]).plain_utf8(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|row| row.names).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(PreTokenizer::find("").unwrap().names, ["default"]);
        assert!(PreTokenizer::find("no-such").is_none());
    }
}
