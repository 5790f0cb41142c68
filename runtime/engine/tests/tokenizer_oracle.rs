//! `tokenizer.json` files against the `tokenizers` library: the same file and the same texts give the same
//! tokens, and the same tokens give the same texts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use ruvllm_engine::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Files of random components, and texts that each file gets.
const RANDOM_FILES: usize = 150;
const TEXTS: usize = 15;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const STARCODER: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Patterns without an ending for white space.
const SHORT: [&str; 8] = [
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[一-龥ࠀ-一가-퟿]+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
];
const BEHAVIORS: [&str; 5] =
    ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];

/// What texts are made of, besides the words of a file and random characters.
#[rustfmt::skip]
const FRAGMENTS: &[&str] = &[
    "a", "the ", " the", "ab", "abc", "'s", "'S", "'ll", "'LL", "'ve", "I'd", "'ſ", "we're", "1", "12", "123",
    "4567", "٣", "٣٤٥٦", "Ⅷ", "½", "²", "x1y", " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n ",
    "\u{a0}", "\u{3000}", "\u{3000}\u{3000}", "\u{85}", "\u{2028}", "\u{b}", "\u{200b}", "e\u{301}", "\u{301}",
    "a\u{323}\u{307}", "a\u{307}\u{323}", "\u{344}", "\u{958}", "\u{212b}", "\u{1e9b}\u{323}", "é", "É", "ß", "İ",
    "中文", "日本語", "ひらがな", "カ", "한국어", "\u{1112}\u{1161}\u{11ab}", "🦙", "👩\u{200d}👧", "ǅ", "ǅa", "ʰ", "aʰB", "K",
    "ABC", "AbC", "helloWorld", "▁", "▁▁", "▁a", "<s>", "</s>", "<|im_end|>", "<|im", "_end|>", "<unk>", "<0xC3>",
    "<0x0A>", "!", "?!", "...", "_", "/", "//\n", "\\", "-", "--", "+$", "«»", "—", "\0", "\u{fffd}", "\u{10ffff}",
    "ก\u{e48}", "עברית", "हिन्दी",
];

/// Added tokens: some in the way of others, some that normalisers change.
#[rustfmt::skip]
const ADDED: &[&str] = &[
    "<s>", "</s>", "<|im_end|>", "<|im", "_end|><s>", "ab", "abc", "bcd", " the", "é", "q\u{307}\u{323}", "\n\n",
    "12", "  ", "▁▁▁", "'s", "中文", "end",
];

/// Reproducible numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn text(&mut self, words: &[String]) -> String {
        let mut text = String::new();
        for _ in 0..self.below(24) {
            match self.below(8) {
                0 | 1 => text.push_str(&self.pick(words)),
                2 => {
                    // Blocks whose canonical compositions have not changed for long.
                    let (from, to) = self.pick(&[
                        (0, 0x250),
                        (0x300, 0x330),
                        (0x370, 0x400),
                        (0x5d0, 0x6ff),
                        (0x900, 0x980),
                        (0x1100, 0x1200),
                        (0x1e00, 0x2070),
                        (0x2c00, 0x2c60),
                        (0x3000, 0x3100),
                        (0xac00, 0xac80),
                        (0x1f300, 0x1f500),
                    ]);
                    text.extend(char::from_u32((from + self.below(to - from)) as u32));
                }
                _ => text.push_str(self.pick(FRAGMENTS)),
            }
        }
        text
    }
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Words with the space in front of them.
fn words() -> Vec<String> {
    let tales =
        std::fs::read_to_string(repository().join("tests/fixtures/parity/tales.txt")).unwrap();
    let mut words: Vec<String> =
        tales.split(' ').take(1500).map(|word| format!(" {word}")).collect();
    words.extend(FRAGMENTS.iter().flat_map(|text| [(*text).to_owned(), format!(" {text}")]));
    words
}

/// The character that stands for each byte.
fn alphabet() -> Vec<char> {
    let mut others = (0x100..).filter_map(char::from_u32);
    let stands_for_itself = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    (0..=255u8)
        .map(
            |byte| if stands_for_itself(&byte) { char::from(byte) } else { others.next().unwrap() },
        )
        .collect()
}

/// A vocabulary.
#[derive(Clone)]
struct Vocabulary {
    tokens: Vec<String>,
    merges: Vec<[String; 2]>,
}

impl Vocabulary {
    /// Trains one: the most frequent pair merges, again and again.
    fn train(base: Vec<String>, words: impl Iterator<Item = String>, merges: usize) -> Self {
        let mut words: Vec<Vec<String>> =
            words.map(|word| word.chars().map(String::from).collect()).collect();
        let mut this = Self { tokens: base, merges: Vec::new() };
        for _ in 0..merges {
            let mut counts = BTreeMap::<(&str, &str), usize>::new();
            let known = |token: &String| this.tokens.contains(token);
            let known: Vec<Vec<bool>> =
                words.iter().map(|word| word.iter().map(known).collect()).collect();
            for (word, known) in words.iter().zip(&known) {
                for (pair, known) in word.windows(2).zip(known.windows(2)) {
                    if known == [true, true] {
                        *counts.entry((&pair[0], &pair[1])).or_default() += 1;
                    }
                }
            }
            let Some((pair, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { break };
            let pair = [pair.0.to_owned(), pair.1.to_owned()];
            let merged = pair.concat();
            for word in &mut words {
                let mut at = 0;
                while at + 1 < word.len() {
                    if word[at..at + 2] == pair {
                        word.splice(at..at + 2, [merged.clone()]);
                    }
                    at += 1;
                }
            }
            if !this.tokens.contains(&merged) {
                this.tokens.push(merged);
            }
            this.merges.push(pair);
        }
        this
    }

    fn byte_level(words: &[String]) -> Self {
        let alphabet = alphabet();
        let spell = |word: &String| word.bytes().map(|byte| alphabet[usize::from(byte)]).collect();
        Self::train(alphabet.iter().map(char::to_string).collect(), words.iter().map(spell), 350)
    }

    /// Characters as they are; most that texts have are no tokens.
    fn escaped(words: &[String]) -> Self {
        let mut base: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
        base.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        base.extend("▁abcdefghijklmnoprstuvwxyzTHEI'.,!?1234é中한\n".chars().map(String::from));
        Self::train(base, words.iter().map(|word| word.replace(' ', "▁")), 350)
    }

    fn ids(&self) -> HashMap<&str, u32> {
        self.tokens.iter().zip(0..).map(|(token, id)| (token.as_str(), id)).collect()
    }

    fn model(&self, settings: Value) -> Value {
        let mut model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": self.ids(), "merges": self.merges});
        model.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        model
    }

    /// Added tokens, of which the ones that the vocabulary lacks follow it.
    fn added(&self, tokens: &[(&str, bool, bool)]) -> Value {
        let (ids, mut next) = (self.ids(), self.tokens.len() as u32);
        let token = |(content, special, normalized): &(&str, bool, bool)| {
            let id = ids.get(content).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": normalized, "special": special})
        };
        tokens.iter().map(token).collect()
    }
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn split(pattern: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert})
}

fn split_text(pattern: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"String": pattern}, "behavior": behavior, "invert": invert})
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

fn digits(individual: bool) -> Value {
    json!({"type": "Digits", "individual_digits": individual})
}

/// The components one after the other; none at all for none.
fn sequence(list: &str, parts: &[Value]) -> Value {
    match parts {
        [] => Value::Null,
        [single] => single.clone(),
        parts => json!({"type": "Sequence", list: parts}),
    }
}

fn file(
    normalizers: &[Value],
    steps: &[Value],
    decoders: &[Value],
    model: Value,
    added: Value,
) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": sequence("normalizers", normalizers),
        "pre_tokenizer": sequence("pretokenizers", steps),
        "post_processor": null,
        "decoder": sequence("decoders", decoders),
        "model": model,
    })
}

/// Compares both on texts and tokens; the number of comparisons, none if the engine refuses the file.
fn compare(name: &str, file: &Value, random: &mut Random, words: &[String]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let bytes = file.to_string();
    std::fs::write(dir.path().join("tokenizer.json"), &bytes).unwrap();
    let Ok(ours) = Tokenizer::from_hf_dir(dir.path()) else { return 0 };
    let mut theirs = tokenizers::Tokenizer::from_bytes(&bytes).unwrap();
    let mut components = file.clone();
    components["model"]["vocab"].take();
    components["model"]["merges"].take();
    let size = ours.vocab_size();
    assert_eq!(size, theirs.get_vocab_size(true), "{name}: {components}");
    let mut compared = 0;
    for round in 0..TEXTS {
        let text = random.text(words);
        let mut sequences =
            vec![(0..random.below(12)).map(|_| random.below(size + 2) as u32).collect()];
        for parse_special in [true, false] {
            theirs.set_encode_special_tokens(!parse_special);
            let expected = theirs.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            let tokens = ours.encode_with_special(&text, parse_special, false).unwrap();
            assert_eq!(
                tokens, expected,
                "{name}, text {round}, {text:?}, {parse_special}: {components}"
            );
            compared += 1;
            sequences.push(tokens);
        }
        for tokens in sequences {
            for skip_special in [true, false] {
                let expected = theirs.decode(&tokens, skip_special).unwrap();
                let decoded = ours.decode(&tokens, skip_special);
                assert_eq!(decoded, expected, "{name}, {tokens:?}, {skip_special}: {components}");
                compared += 1;
            }
        }
    }
    compared
}

#[test]
fn families_encode_and_decode_as_the_library() {
    let (words, mut random) = (words(), Random(1));
    let (bytes, escaped) = (Vocabulary::byte_level(&words), Vocabulary::escaped(&words));
    let controls: &[(&str, bool, bool)] = &[
        ("<s>", true, false),
        ("</s>", true, false),
        ("<|im_end|>", true, false),
        ("<unk>", true, false),
    ];
    let mut files = Vec::new();

    // Llama 2 and Mistral.
    let space = [json!({"type": "Prepend", "prepend": "▁"}), replace(" ", "▁")];
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let back = [replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"}), strip];
    for settings in [
        json!({"unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true}),
        json!({"unk_token": "<unk>", "byte_fallback": true}),
        json!({"unk_token": "<unk>", "fuse_unk": true}),
        json!({"unk_token": "<unk>"}),
        json!({"byte_fallback": true, "ignore_merges": true}),
        json!({}),
    ] {
        let model = escaped.model(settings.clone());
        let added = escaped.added(controls);
        files.push((
            format!("llama 2 {settings}"),
            file(&space, &[], &back, model.clone(), added.clone()),
        ));
        for scheme in ["first", "never", "always"] {
            for split in [true, false] {
                let space = [metaspace(scheme, split)];
                let name = format!("metaspace {scheme} {split} {settings}");
                files.push((name, file(&[], &space, &space, model.clone(), added.clone())));
            }
        }
        // Without tokens for some bytes, a character is spelled by the unknown token.
        let mut few = model.clone();
        for byte in ["<0xA9>", "<0xF0>", "<0xE6>"] {
            few["vocab"].as_object_mut().unwrap().remove(byte);
        }
        let added = json!([]);
        files.push((format!("few bytes {settings}"), file(&space, &[], &back, few, added)));
    }

    let nfc = json!({"type": "NFC"});
    let isolated = |pattern: &str| split(pattern, "Isolated", false);
    let qwen2 = LLAMA3.replace("{1,3}", "");
    let mixed: &[(&str, bool, bool)] = &[
        ("<|im_end|>", true, false),
        ("<|im", false, true),
        ("<s>", true, true),
        ("abc", false, false),
        ("ab", false, true),
        ("  ", false, false),
    ];
    for (name, normalizers, steps) in [
        ("llama 3", vec![], vec![isolated(LLAMA3), byte_level(false, false)]),
        ("qwen2", vec![nfc.clone()], vec![isolated(&qwen2), byte_level(false, false)]),
        ("smollm", vec![], vec![digits(true), byte_level(false, true)]),
        ("digits", vec![], vec![digits(false), byte_level(false, true)]),
        ("gpt-2", vec![], vec![byte_level(false, true)]),
        ("gpt-2 prefix", vec![], vec![byte_level(true, true)]),
        ("gpt-2 whole", vec![], vec![byte_level(false, false)]),
        ("gpt-2 prefix whole", vec![], vec![byte_level(true, false)]),
        ("starcoder", vec![], vec![digits(true), isolated(STARCODER), byte_level(false, false)]),
        ("removed", vec![], vec![split(GPT2, "Removed", true), byte_level(false, false)]),
        ("tekken", vec![], vec![isolated(TEKKEN), byte_level(false, false)]),
        (
            "tekken 3",
            vec![],
            vec![isolated(&TEKKEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), byte_level(false, false)],
        ),
        ("gpt-4o", vec![], vec![isolated(GPT4O), byte_level(false, false)]),
        (
            "deepseek",
            vec![],
            SHORT[..4]
                .iter()
                .map(|p| isolated(p))
                .chain([digits(true), byte_level(false, false)])
                .collect(),
        ),
        (
            "deepseek 3",
            vec![],
            [SHORT[7], SHORT[4], DEEPSEEK3]
                .map(isolated)
                .into_iter()
                .chain([byte_level(false, false)])
                .collect(),
        ),
    ] {
        for ignore_merges in [true, false] {
            for added in [controls, mixed, &[]] {
                let model = bytes.model(json!({"ignore_merges": ignore_merges}));
                let decoders = [byte_level(true, true)];
                let file = file(&normalizers, &steps, &decoders, model, bytes.added(added));
                files.push((format!("{name} {ignore_merges}"), file));
            }
        }
    }
    let mut total = 0;
    for (name, file) in &files {
        let compared = compare(name, file, &mut random, &words);
        assert!(compared > 0, "{name} was refused");
        total += compared;
    }
    println!("{total} comparisons");
}

#[test]
fn random_components_encode_and_decode_as_the_library() {
    let (words, mut random) = (words(), Random(2));
    let (bytes, escaped) = (Vocabulary::byte_level(&words), Vocabulary::escaped(&words));
    let patterns: Vec<&str> =
        [LLAMA3, TEKKEN, GPT4O, DEEPSEEK3, GPT2, STARCODER].into_iter().chain(SHORT).collect();
    let (mut total, mut accepted) = (0, 0);
    for round in 0..RANDOM_FILES {
        let by_bytes = random.chance();
        let texts: [(&str, &str); 9] = [
            (" ", "▁"),
            ("a", "b"),
            ("b", "ab"),
            ("the", "x"),
            ("'", ""),
            ("\u{301}", ""),
            ("12", "🦙"),
            ("aa", "a"),
            ("-#&~ ", "-"),
        ];
        let some_replace = |random: &mut Random| {
            let (pattern, content) = random.pick(&texts);
            replace(pattern, content)
        };
        let normalizers: Vec<Value> = (0..random.below(4))
            .map(|_| match random.below(4) {
                0 => json!({"type": "NFC"}),
                1 => json!({"type": "Prepend", "prepend": random.pick(&["▁", "a", " "])}),
                2 => replace(" ", "▁"),
                _ => some_replace(&mut random),
            })
            .collect();
        let mut steps: Vec<Value> = (0..random.below(4))
            .map(|_| {
                let (behavior, invert) = (random.pick(&BEHAVIORS), random.below(3) == 0);
                match random.below(5) {
                    0 => digits(random.chance()),
                    1 => {
                        let texts = [
                            "▁", " ", "a", "the", "\n", "'", "12", ".", "?!", "-", "#", "&", "~",
                            "é",
                        ];
                        split_text(random.pick(&texts), behavior, invert)
                    }
                    _ => split(random.pick(&patterns), behavior, invert),
                }
            })
            .collect();
        let respelling = match by_bytes {
            true => byte_level(random.chance(), random.chance()),
            false => metaspace(random.pick(&["first", "never", "always"]), random.chance()),
        };
        if random.below(4) > 0 {
            let at = if random.chance() { steps.len() } else { random.below(steps.len() + 1) };
            steps.insert(at, respelling);
        }
        let decoders: Vec<Value> = (0..random.below(5))
            .map(|_| match random.below(7) {
                0 => byte_level(true, true),
                1 | 2 => json!({"type": "ByteFallback"}),
                3 => json!({"type": "Fuse"}),
                4 => metaspace(random.pick(&["first", "never", "always"]), true),
                5 => replace("▁", random.pick(&[" ", "", "aa"])),
                _ => json!({"type": "Strip", "content": random.pick(&[" ", "a", "▁"]),
                    "start": random.below(3), "stop": 0}),
            })
            .collect();
        let mut vocabulary = if by_bytes { bytes.clone() } else { escaped.clone() };
        // Of a merge that is there twice, the last one counts.
        for _ in 0..random.below(20) {
            let again = random.pick(&vocabulary.merges);
            vocabulary.merges.push(again);
        }
        let unknown = if by_bytes { "!" } else { "<unk>" };
        let model = vocabulary.model(json!({
            "unk_token": if random.chance() { json!(unknown) } else { Value::Null },
            "fuse_unk": random.chance(), "byte_fallback": random.chance(), "ignore_merges": random.chance(),
        }));
        let mut added = Vec::new();
        for content in ADDED {
            if random.below(3) == 0 {
                added.push((*content, random.chance(), random.chance()));
            }
        }
        let file = file(&normalizers, &steps, &decoders, model, vocabulary.added(&added));
        let compared = compare(&format!("random {round}"), &file, &mut random, &words);
        accepted += usize::from(compared > 0);
        total += compared;
    }
    println!("{total} comparisons on {accepted} files");
    assert!(accepted > RANDOM_FILES / 2, "{accepted}");
}

/// Vocabularies of words and of their parts, with the ways of cutting that such files have.
#[test]
fn vocabularies_of_words_encode_and_decode_as_the_library() {
    let mut random = Random(11);
    let words = words();
    let mut vocab = vec!["[UNK]".to_owned(), "[PAD]".to_owned()];
    let mut seen: std::collections::HashSet<String> = vocab.iter().cloned().collect();
    let mut add = |text: String| {
        if !text.is_empty() && seen.insert(text.clone()) {
            vocab.push(text);
        }
    };
    for word in words.iter().take(400) {
        let word = word.trim();
        add(word.to_owned());
        let half = word.floor_char_boundary(word.len() / 2);
        add(word[..half].to_owned());
        add(format!("##{}", &word[half..]));
        word.chars().take(3).for_each(|c| add(format!("##{c}")));
    }
    for part in ["##é", "##s", "##1", "2", "##2", ".", ",", "!", "'", "n't", "do", "##n't", "not"]
    {
        add(part.to_owned());
    }
    let ids: HashMap<&str, u32> = vocab.iter().map(String::as_str).zip(0..).collect();
    let piece = |most: usize| {
        json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": most, "vocab": ids})
    };
    let level = json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": ids});
    let joins = |cleanup: bool| json!({"type": "WordPiece", "prefix": "##", "cleanup": cleanup});
    let special = json!([{"id": 0, "content": "[UNK]", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}]);
    let plain = |kind: &str| json!({ "type": kind });
    let mut compared = 0;
    for (name, model, decoder) in [
        ("parts", piece(100), vec![joins(true)]),
        ("parts as they are", piece(100), vec![joins(false)]),
        ("short words", piece(4), vec![joins(true)]),
        ("words", level.clone(), vec![]),
        ("words with parts", level, vec![joins(true)]),
        ("parts without a decoder", piece(100), vec![]),
    ] {
        for step in ["Whitespace", "WhitespaceSplit", "BertPreTokenizer"] {
            let file = file(&[], &[plain(step)], &decoder, model.clone(), special.clone());
            compared += compare(&format!("{name}, {step}"), &file, &mut random, &words);
        }
        for (clean, ideographs, accents, lowercase) in [
            (true, true, Value::Null, true),
            (true, false, json!(false), true),
            (false, true, json!(true), false),
            (false, false, Value::Null, false),
        ] {
            let bert = json!({"type": "BertNormalizer", "clean_text": clean,
                "handle_chinese_chars": ideographs, "strip_accents": accents, "lowercase": lowercase});
            let step = [plain("BertPreTokenizer")];
            let shown = bert.to_string();
            let file = file(&[bert], &step, &decoder, model.clone(), special.clone());
            compared += compare(&format!("{name}, {shown}"), &file, &mut random, &words);
        }
    }
    assert_eq!(compared, 42 * TEXTS * 8);
}
