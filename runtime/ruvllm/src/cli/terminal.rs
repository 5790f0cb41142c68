//! What the program says, on its way to a terminal.
//!
//! Messages and figures hold texts of files: names of models, tensors, types, what a template refuses with.
//! None of them may steer the terminal that shows it, so everything is escaped here, at the one place where
//! it leaves, and nobody who makes a message needs to remember: the lints on printing keep it the one
//! place. What was asked for goes out by `setup::emit`, which knows a reader who went away: a model's own
//! text as it is, tables and JSON escaped by who makes them.

use super::Failure;
use ruvllm::LoadProgress;
use ruvllm::signing::escape_untrusted;
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

/// The most characters of a message.
const MAX_MESSAGE: usize = 16_384;

/// Prints a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::terminal::out(format_args!($($text)*)) };
}

/// Prints a line to standard error.
macro_rules! note {
    ($($text:tt)*) => { $crate::cli::terminal::err(format_args!($($text)*)) };
}

pub(crate) use {note, say};

pub(crate) fn out(text: Arguments<'_>) {
    if let Err(error) = print(&(escape_lines(&text.to_string()) + "\n")) {
        err(format_args!("warning: standard output cannot be written: {error}"));
    }
}

/// Writes to standard output at once, as it is. A reader who went away, as `head` does, wants no more of it, which is no
/// failure.
///
/// # Errors
/// What else the system says.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes to standard error. Where nobody reads that, there is nobody to tell.
fn print_error(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

pub(crate) fn err(text: Arguments<'_>) {
    let text = text.to_string();
    // A file may repeat itself in a message for megabytes.
    let shown = text.char_indices().nth(MAX_MESSAGE).map_or(&*text, |(end, _)| &text[..end]);
    print_error(&(escape_lines(shown) + "\n"));
}

/// A bar on standard error of how much of some work is done, drawn over itself, where that is a terminal.
/// Elsewhere nothing is drawn.
pub(crate) struct ProgressBar {
    label: String,
    shown: bool,
}

impl ProgressBar {
    /// Characters between the brackets.
    const WIDTH: usize = 24;

    /// A bar of that label, which shows from its first [`set`](Self::set) on.
    pub(crate) fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), shown: io::stderr().is_terminal() }
    }

    /// Draws the bar, with a text behind it.
    pub(crate) fn set(&self, done: usize, all: usize, text: &str) {
        if self.shown {
            print_error(&format!("\r\x1b[K{}", escape_untrusted(&self.line(done, all, text))));
        }
    }

    fn line(&self, done: usize, all: usize, text: &str) -> String {
        let full = (Self::WIDTH * done.min(all)).checked_div(all).unwrap_or(0);
        let (full, rest) = ("#".repeat(full), ".".repeat(Self::WIDTH - full));
        format!("{} [{full}{rest}] {done}/{all} {text}", self.label)
    }
}

impl Drop for ProgressBar {
    /// Clears its line.
    fn drop(&mut self) {
        if self.shown {
            print_error("\r\x1b[K");
        }
    }
}

/// A bar of how far a model is loaded, for loads that take more than a moment.
pub(crate) struct LoadBar {
    started: Instant,
    drawn: Option<(Instant, ProgressBar)>,
}

impl LoadBar {
    /// A load that takes no longer shows no bar.
    const MOMENT: Duration = Duration::from_secs(1);
    /// How often the bar is drawn at most.
    const PACE: Duration = Duration::from_millis(100);

    /// The bar of a load that begins now.
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), drawn: None }
    }

    /// Draws the bar, if it is time to.
    pub(crate) fn show(&mut self, LoadProgress { done, total }: LoadProgress) {
        let now = Instant::now();
        if !self.is_due(now) {
            return;
        }
        let bar = self.drawn.take().map_or_else(|| ProgressBar::new("loading"), |(_, bar)| bar);
        bar.set(done >> 20, total >> 20, "MiB");
        self.drawn = Some((now, bar));
    }

    fn is_due(&self, now: Instant) -> bool {
        match &self.drawn {
            Some((last, _)) => now - *last >= Self::PACE,
            None => now - self.started >= Self::MOMENT,
        }
    }
}

/// Prints to standard error without an end of the line.
pub(crate) fn beginning(text: &str) {
    print_error(&escape_lines(text));
}

/// Prints JSON to standard output, over several lines if `pretty`.
///
/// # Errors
/// Of a value that JSON cannot hold, and as for [`print`].
pub(crate) fn json(value: &impl Serialize, pretty: bool) -> Result<(), Failure> {
    let to_text = if pretty { serde_json::to_string_pretty } else { serde_json::to_string };
    print(&(escape_json(&to_text(value)?) + "\n"))?;
    Ok(())
}

/// Prints JSON to standard error, in one line.
///
/// # Errors
/// Of a value that JSON cannot hold.
pub(crate) fn json_note(value: &impl Serialize) -> Result<(), Failure> {
    print_error(&(escape_json(&serde_json::to_string(value)?) + "\n"));
    Ok(())
}

/// A text with its lines and tabs, and without anything else that could steer a terminal.
fn escape_lines(text: &str) -> String {
    let parts = text.split_inclusive(['\n', '\t']);
    parts.fold(String::with_capacity(text.len()), |escaped, part| {
        let words = part.trim_end_matches(['\n', '\t']);
        escaped + &escape_untrusted(words) + &part[words.len()..]
    })
}

/// JSON of the same meaning, without anything that could steer a terminal. Such characters are only in
/// its strings.
pub(crate) fn escape_json(json: &str) -> String {
    if escape_lines(json) == json {
        return json.to_owned();
    }
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        let shown = c.to_string();
        if escape_lines(&shown) == shown {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            escaped.push_str(&format!("\\u{unit:04x}"));
        }
    }
    escaped
}

/// Standard error for the log, which hands over whole lines.
pub(crate) struct LogWriter {
    escape: fn(&str) -> String,
}

impl LogWriter {
    /// For lines of text.
    pub(crate) fn text() -> Self {
        Self { escape: escape_lines }
    }

    /// For lines of JSON.
    pub(crate) fn json() -> Self {
        Self { escape: escape_json }
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let escaped = (self.escape)(&String::from_utf8_lossy(line));
        io::stderr().write_all(escaped.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_and_what_steers_terminals_does_not() {
        assert_eq!(escape_lines("a\tb\n\u{1b}[2J\r\n"), "a\tb\n\\u{1b}[2J\\u{d}\n");
        assert_eq!(escape_lines("é\n\n"), "é\n\n");
    }

    #[test]
    fn a_bar_fills_from_nothing_to_all() {
        let bar = ProgressBar { label: "q8_0".into(), shown: false };
        assert_eq!(bar.line(0, 2, ""), "q8_0 [........................] 0/2 ");
        assert_eq!(bar.line(1, 2, "11.98"), "q8_0 [############............] 1/2 11.98");
        assert_eq!(bar.line(2, 2, "12"), "q8_0 [########################] 2/2 12");
        assert_eq!(bar.line(0, 0, ""), "q8_0 [........................] 0/0 ");
    }

    #[test]
    fn a_bar_of_a_load_comes_after_a_second_and_ten_times_a_second_then() {
        let mut bar = LoadBar::new();
        let after = |ms: u64| bar.started + Duration::from_millis(ms);
        let (early, late, soon, later) = (after(999), after(1000), after(1099), after(1100));
        assert!(!bar.is_due(early) && bar.is_due(late));
        bar.drawn = Some((late, ProgressBar { label: String::new(), shown: false }));
        assert!(!bar.is_due(soon) && bar.is_due(later));
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let value = serde_json::json!({"a\u{9b}": ["\u{1b}\u{202e}\u{e0001}", "é", 1]});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escape_json(&text);
            assert!(!escaped.contains(['\u{9b}', '\u{202e}', '\u{e0001}']), "{escaped}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
    }
}
