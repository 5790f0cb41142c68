//! Character classes of pre-tokenization and the byte alphabet of byte-level BPE.
//!
//! A text is *collapsed* to one byte a character: ASCII stays itself, every other character becomes the
//! code of its class. Patterns over classes then run as plain byte patterns, with offsets in characters.

use std::sync::OnceLock;

use super::unicode_table::CLASS_RUNS;

/// Code of a non-ASCII white space character: vertical tab, which every pattern treats as white space.
pub(super) const SPACE: u8 = 0x0B;
/// Code of a non-ASCII character of no class that patterns name.
const OTHER: u8 = 0xD0;
/// Codes of the classes by their number in [`CLASS_RUNS`].
const CODES: [u8; 6] = [OTHER, 0xD1, 0xD2, 0xD3, 0xD4, 0xD5];
/// Code of `\p{L}`.
pub(super) const LETTER: u8 = CODES[2];
/// Code of a Han letter where a pattern tells Han from other letters.
pub(super) const HAN_LETTER: u8 = 0xD6;
/// Code of a Han code point that is no letter.
pub(super) const HAN_OTHER: u8 = 0xD7;

const CODE_POINTS: usize = 0x11_0000;

fn codes() -> &'static [u8] {
    static CODES_BY_POINT: OnceLock<Box<[u8]>> = OnceLock::new();
    CODES_BY_POINT.get_or_init(|| {
        let mut codes = vec![OTHER; CODE_POINTS].into_boxed_slice();
        for (i, run) in CLASS_RUNS.iter().enumerate() {
            let start = (run >> 4) as usize;
            let end = CLASS_RUNS.get(i + 1).map_or(CODE_POINTS, |next| (next >> 4) as usize);
            codes[start..end].fill(CODES[(run & 15) as usize]);
        }
        for (point, code) in codes.iter_mut().enumerate().take(0x80) {
            *code = point as u8;
        }
        let spaces = [0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000];
        for point in spaces.into_iter().chain(0x2000..=0x200A) {
            codes[point] = SPACE;
        }
        codes
    })
}

/// Blocks that the Kimi pattern counts as Han.
fn is_han(c: char) -> bool {
    matches!(u32::from(c), 0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2EBEF
        | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}

/// One class code for each character of `text`.
pub(super) fn collapse(text: &str, han: bool) -> Vec<u8> {
    if text.is_ascii() {
        return text.as_bytes().to_vec();
    }
    let codes = codes();
    let code = |c: char| {
        let code = codes[c as usize];
        match han && is_han(c) {
            false => code,
            true if code == LETTER => HAN_LETTER,
            true => HAN_OTHER,
        }
    };
    text.chars().map(code).collect()
}

/// Whether a class code is `\p{N}`.
pub(super) fn is_number(code: u8) -> bool {
    code.is_ascii_digit() || code == CODES[1]
}

/// Rewrites the classes `\p{N}`, `\p{L}`, `\p{P}`, `\p{M}` and `\p{S}` (and `\p{Han}`) of a pattern into
/// byte sets over class codes.
pub(super) fn collapse_pattern(pattern: &str) -> String {
    const SETS: [(&str, &str); 6] = [
        (r"\p{N}", r"\xD10-9"),
        (r"\p{L}", r"\xD2\xD6A-Za-z"),
        (r"\p{P}", r"\xD3!-#%-*,-/:;?@\[-\]_\{\}"),
        (r"\p{M}", r"\xD4"),
        (r"\p{S}", r"\xD5$+<->\^`|\x7E"),
        (r"\p{Han}", r"\xD6\xD7"),
    ];
    let mut out = String::with_capacity(pattern.len() * 2);
    let mut inside = false;
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        if let Some((name, set)) = SETS.iter().find(|(name, _)| rest.starts_with(name)) {
            if inside {
                out.push_str(set);
            } else {
                out.extend(["[", set, "]"]);
            }
            rest = &rest[name.len()..];
            continue;
        }
        let mut len = c.len_utf8();
        match c {
            '\\' => len += rest[len..].chars().next().map_or(0, char::len_utf8),
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

/// The byte that a character stands for in the tokens of a byte-level BPE vocabulary: printable Latin-1
/// stands for itself, the 68 characters from U+0100 on for the other bytes in order; `None` for others.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    let point = u32::from(c);
    match point {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(point as u8),
        0x100..=0x120 => Some((point - 0x100) as u8),
        0x121..=0x142 => Some((point - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The character that stands for a byte there.
pub(super) fn byte_to_char(byte: u8) -> char {
    let shifted = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => return char::from(byte),
        0x00..=0x20 => u32::from(byte),
        0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x21,
        0xAD => 0x43,
    };
    char::from_u32(0x100 + shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that a byte-level token stands for; `None` when a character is outside the alphabet.
pub(super) fn alphabet_to_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(char_to_byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_is_a_bijection() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            let c = byte_to_char(byte);
            assert!(seen.insert(c) && !c.is_whitespace() && !c.is_control(), "{byte:02x}");
            assert_eq!(char_to_byte(c), Some(byte));
        }
        assert_eq!((byte_to_char(b' '), byte_to_char(b'\n'), byte_to_char(0xAD)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(alphabet_to_bytes("Ġaé"), Some(vec![b' ', b'a', 0xE9]));
        assert_eq!(alphabet_to_bytes("a b"), None);
    }

    #[test]
    fn classes_follow_unicode_15_1() {
        // e acute, Arabic digit, em dash, combining acute, rupee, no-break space, a letter of 16.0.
        assert_eq!(
            collapse("a1é٣—\u{301}₹\u{a0}\u{1c89}", false),
            [b'a', b'1', 0xD2, 0xD1, 0xD3, 0xD4, 0xD5, SPACE, OTHER]
        );
        assert_eq!(collapse("中é", true), [HAN_LETTER, LETTER]);
        // U+31EF came with 15.1.
        assert_eq!(collapse("\u{31ef}", false), [0xD5]);
    }

    #[test]
    fn patterns_collapse_inside_and_outside_sets() {
        assert_eq!(collapse_pattern(r"\p{M}|[^\]\p{M}x]\p{N}"), r"[\xD4]|[^\]\xD4x][\xD10-9]");
    }
}
