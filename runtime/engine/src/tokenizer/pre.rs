//! Pre-tokenization: cuts a text into the pieces that BPE merges within.
//!
//! Runs the stages of a [`PreTokenizer`] row. Patterns contain no look-around and run on automata, so the
//! time is linear in the text for each stage, whatever the text is.

use std::ops::Range;

use regex::{Regex, bytes};

use super::TokenizerError;
use super::pre_table::{PreTokenizer, Stage, Tail};
use super::unicode;

/// A compiled stage.
#[derive(Debug)]
enum Cut {
    Classes { pattern: bytes::Regex, tail: Tail, han: bool },
    Text(Regex),
    DigitGroups,
    Thousands,
}

/// A compiled pre-tokenizer.
#[derive(Debug)]
pub(super) struct Splitter {
    cuts: Vec<Cut>,
}

/// A text with what the stages look at; positions are character indices.
struct Source<'a> {
    text: &'a str,
    codes: Vec<u8>,
    /// Byte offset of each character and of the end; empty for ASCII, where both are the same.
    offsets: Vec<usize>,
}

impl Source<'_> {
    fn byte(&self, position: usize) -> usize {
        if self.offsets.is_empty() { position } else { self.offsets[position] }
    }
}

impl Splitter {
    pub(super) fn new(row: &PreTokenizer) -> Result<Self, TokenizerError> {
        let cuts = row.stages.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { cuts })
    }

    /// Byte ranges of the pieces of `text`, in order and without gaps.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let han = self.cuts.iter().any(|cut| matches!(cut, Cut::Classes { han: true, .. }));
        let codes = unicode::collapse(text, han);
        let offsets = if codes.len() == text.len() {
            Vec::new()
        } else {
            text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
        };
        let source = Source { text, codes, offsets };
        let mut ends = vec![source.codes.len()];
        for cut in &self.cuts {
            let mut cuts = Vec::with_capacity(ends.len());
            let mut start = 0;
            for end in ends {
                if start < end {
                    cut.apply(&source, start, end, &mut cuts);
                }
                start = end;
            }
            ends = cuts;
        }
        let mut start = 0;
        ends.into_iter()
            .map(|end| {
                let end = source.byte(end);
                std::mem::replace(&mut start, end)..end
            })
            .collect()
    }
}

fn compile(stage: &Stage) -> Result<Cut, TokenizerError> {
    let bad = |error: regex::Error| TokenizerError::Malformed {
        what: "the pre-tokenizer pattern".into(),
        reason: error.to_string(),
    };
    let classes = |pattern: &str, tail, han| {
        let suffix = if tail == Tail::None { "" } else { r"|\s+" };
        bytes::RegexBuilder::new(&unicode::collapse_pattern(&format!("{pattern}{suffix}")))
            .unicode(false)
            .build()
            .map(|pattern| Cut::Classes { pattern, tail, han })
            .map_err(bad)
    };
    match *stage {
        Stage::Classes(pattern, tail) => classes(pattern, tail, false),
        Stage::HanClasses(pattern, tail) => classes(pattern, tail, true),
        Stage::Text(pattern) => Regex::new(pattern).map(Cut::Text).map_err(bad),
        Stage::DigitGroups => Ok(Cut::DigitGroups),
        Stage::Thousands => Ok(Cut::Thousands),
    }
}

impl Cut {
    /// Appends the ends of the pieces of the non-empty piece `start..end`.
    fn apply(&self, source: &Source<'_>, start: usize, end: usize, ends: &mut Vec<usize>) {
        match self {
            Self::Classes { pattern, tail, .. } => {
                cut_classes(pattern, *tail, &source.codes[..end], start, ends);
            }
            Self::Text(pattern) => cut_text(pattern, source, start, end, ends),
            Self::DigitGroups => {
                digit_runs(&source.codes[..end], start, unicode::is_number, |run| {
                    let first = (run.start + 1..=run.end).find(|at| (run.end - at) % 3 == 0);
                    ends.extend((first.unwrap_or(run.end)..=run.end).step_by(3));
                });
                close(end, ends);
            }
            Self::Thousands => {
                digit_runs(
                    &source.codes[..end],
                    start,
                    |code| code.is_ascii_digit(),
                    |run| {
                        ends.extend(
                            run.clone().filter(|at| *at > start && (run.end - at) % 3 == 0),
                        );
                    },
                );
                close(end, ends);
            }
        }
    }
}

/// Ends the last piece where the piece that was cut ends.
fn close(end: usize, ends: &mut Vec<usize>) {
    if ends.last().is_none_or(|last| *last < end) {
        ends.push(end);
    }
}

fn digit_runs(
    codes: &[u8],
    start: usize,
    is_digit: impl Fn(u8) -> bool,
    mut found: impl FnMut(Range<usize>),
) {
    let mut at = start;
    while at < codes.len() {
        let len = codes[at..].iter().take_while(|code| is_digit(**code)).count();
        if len > 0 {
            found(at..at + len);
        }
        at += len.max(1);
    }
}

fn cut_classes(
    pattern: &bytes::Regex,
    tail: Tail,
    codes: &[u8],
    start: usize,
    ends: &mut Vec<usize>,
) {
    let is_space = |code: u8| matches!(code, b'\t'..=b'\r' | b' ');
    let mut at = start;
    while let Some(found) = pattern.find(&codes[at..]) {
        if found.start() > 0 {
            ends.push(at + found.start());
        }
        let (from, mut to) = (at + found.start(), at + found.end());
        let last = codes[to - 1];
        let is_run = tail.took(is_space(last), matches!(last, b'\r' | b'\n'));
        if is_run && to - from > 1 && to < codes.len() {
            to -= 1;
        }
        if is_run && tail == Tail::Cascade {
            cascade(from..to, ends);
        } else {
            ends.push(to);
        }
        at = to;
    }
    if at < codes.len() {
        ends.push(codes.len());
    }
}

/// Cuts a run of white space into the longest steps.
fn cascade(run: Range<usize>, ends: &mut Vec<usize>) {
    const STEPS: [usize; 9] = [512, 256, 128, 64, 32, 16, 8, 4, 2];
    let mut at = run.start;
    while at < run.end {
        at += STEPS.into_iter().find(|step| *step <= run.end - at).unwrap_or(1);
        ends.push(at);
    }
}

fn cut_text(pattern: &Regex, source: &Source<'_>, start: usize, end: usize, ends: &mut Vec<usize>) {
    let piece = &source.text[source.byte(start)..source.byte(end)];
    let chars =
        |part: &str| if source.offsets.is_empty() { part.len() } else { part.chars().count() };
    let (mut position, mut byte) = (start, 0);
    for found in pattern.find_iter(piece) {
        for edge in [found.start(), found.end()] {
            if edge > byte {
                position += chars(&piece[byte..edge]);
                byte = edge;
                ends.push(position);
            }
        }
    }
    if position < end {
        ends.push(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::pre_table::TABLE;

    fn pieces<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let splitter = Splitter::new(PreTokenizer::find(name).unwrap()).unwrap();
        splitter.split(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn every_row_compiles_and_loses_no_text() {
        let text = "I'll  pay\t12345678\u{3000}\u{3000}€ for «Zoë»,\r\n\r\n  naïve 中文かな 한국어 ก\u{e48} a\u{301}\u{301}  🦙🦙 x_y!?.. 'S\n \n";
        for row in TABLE {
            let splitter = Splitter::new(row).unwrap();
            let joined: String =
                splitter.split(text).into_iter().map(|range| &text[range]).collect();
            assert_eq!(joined, text, "{:?}", row.names);
            assert!(splitter.split("").iter().all(|range| range.is_empty()));
        }
    }

    #[test]
    fn white_space_leaves_its_last_character_to_the_word() {
        assert_eq!(pieces("gpt-2", "a   b \n\n c  "), ["a", "  ", " b", " \n\n", " c", "  "]);
        assert_eq!(pieces("qwen2", "a   b \n\n c  "), ["a", "  ", " b", " \n\n", " c", "  "]);
        assert_eq!(pieces("gpt-2", "\n\n1"), ["\n", "\n", "1"]);
        assert_eq!(pieces("llama3", "\n\n1"), ["\n\n", "1"]);
    }

    #[test]
    fn digits_group_by_family() {
        assert_eq!(pieces("llama3", "1234567"), ["123", "456", "7"]);
        assert_eq!(pieces("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(pieces("gpt-2", "1234567"), ["1234567"]);
        assert_eq!(pieces("falcon", "1234567"), ["123", "456", "7"]);
        assert_eq!(pieces("superbpe", "x1234567"), ["x", "1", "234", "567"]);
        assert_eq!(pieces("tiny_aya", "1234567"), ["1", "234", "567"]);
    }

    #[test]
    fn contractions_case_and_marks_follow_the_family() {
        assert_eq!(pieces("gpt-2", "we'll WE'LL"), ["we", "'ll", " WE", "'", "LL"]);
        assert_eq!(pieces("llama3", "we'll WE'LL"), ["we", "'ll", " WE", "'LL"]);
        assert_eq!(pieces("gpt-4o", "we'll helloWorld"), ["we'll", " hello", "World"]);
        assert_eq!(pieces("qwen2", "e\u{301}a"), ["e", "\u{301}a"]);
        assert_eq!(pieces("qwen35", "e\u{301}a"), ["e\u{301}a"]);
        assert_eq!(pieces("kimi-k2", "ab中文cd"), ["ab", "中文", "cd"]);
    }

    #[test]
    fn long_white_space_cascades() {
        let text = format!("{}x", " ".repeat(1000));
        let lens: Vec<_> = pieces("jais-2", &text).iter().map(|piece| piece.len()).collect();
        assert_eq!(lens, [512, 256, 128, 64, 32, 4, 2, 1, 2]);
    }
}
