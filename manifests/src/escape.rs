//! Making text from a stranger safe to print.

use std::fmt::Write;

/// Replaces what could steer a terminal or reorder the line with visible escapes.
///
/// Control characters (C0, DEL, C1), line and paragraph separators, bidirectional controls and
/// invisible format characters come out as `\u{..}`; everything else stays as it is, so escaping
/// twice changes nothing. The result holds no character that begins an escape sequence.
pub fn escape_untrusted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a String does not fail.
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        } else {
            out.push(c);
        }
    }
    out
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_and_bidi_controls_become_visible() {
        assert_eq!(escape_untrusted("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(escape_untrusted("\u{9b}31m\r\n"), "\\u{9b}31m\\u{d}\\u{a}");
        assert_eq!(escape_untrusted("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
    }

    #[test]
    fn ordinary_text_stays_and_escaping_twice_changes_nothing() {
        let text = "Größe 語 \\ ok";
        assert_eq!(escape_untrusted(text), text);
        let once = escape_untrusted("\u{1b}\u{7}");
        assert_eq!(escape_untrusted(&once), once);
    }
}
