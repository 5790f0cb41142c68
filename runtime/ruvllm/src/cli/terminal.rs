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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The most characters of a message.
const MAX_MESSAGE: usize = 16_384;

/// Clears the line of a terminal and goes to its beginning.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Whether standard error ends with a line that is drawn over itself.
static DRAWN: AtomicBool = AtomicBool::new(false);

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
    print_error(&(clear_drawn().to_owned() + &escape_lines(shown) + "\n"));
}

/// What comes before a message, so that it does not stand behind what is drawn.
fn clear_drawn() -> &'static str {
    if DRAWN.swap(false, Ordering::Relaxed) { CLEAR_LINE } else { "" }
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
        self.draw(&self.line(done, all, text));
    }

    /// Draws the label alone, while it is not known how much there is to do.
    fn begin(&self) {
        self.draw(&format!("{} ...", self.label));
    }

    fn draw(&self, line: &str) {
        if self.shown {
            DRAWN.store(true, Ordering::Relaxed);
            print_error(&format!("{CLEAR_LINE}{}", escape_untrusted(line)));
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
            DRAWN.store(false, Ordering::Relaxed);
            print_error(CLEAR_LINE);
        }
    }
}

/// What is shown of a load that takes more than a moment, where standard error is a terminal: first that it goes on,
/// and once the model's weights are prepared a bar of how far that is. Its line is cleared when it is dropped.
pub(crate) struct LoadBar {
    load: Arc<Load>,
    /// Draws when the moment is over, whatever is done then.
    ticker: Option<JoinHandle<()>>,
}

/// A load that goes on.
struct Load {
    state: Mutex<LoadState>,
    /// Notified when it ends.
    ended: Condvar,
}

struct LoadState {
    started: Instant,
    ended: bool,
    drawn: Option<DrawnBar>,
}

/// A bar that is shown.
struct DrawnBar {
    bar: ProgressBar,
    /// When progress was drawn last.
    last: Option<Instant>,
}

impl LoadBar {
    /// A load that takes no longer shows nothing.
    const MOMENT: Duration = Duration::from_secs(1);
    /// How often the bar is drawn at most.
    const PACE: Duration = Duration::from_millis(100);

    /// The bar of a load that begins now.
    pub(crate) fn new() -> Self {
        let state = Mutex::new(LoadState { started: Instant::now(), ended: false, drawn: None });
        let load = Arc::new(Load { state, ended: Condvar::new() });
        let ticker = io::stderr().is_terminal().then(|| {
            let load = load.clone();
            thread::Builder::new().name("ruvllm-loading".to_owned()).spawn(move || load.announce())
        });
        // Where there is no thread to be had, the bar alone is shown.
        Self { load, ticker: ticker.and_then(Result::ok) }
    }

    /// Draws the bar, if it is time to.
    pub(crate) fn show(&self, LoadProgress { done, total }: LoadProgress) {
        let (now, mut state) = (Instant::now(), self.load.state());
        if !state.is_due(now) {
            return;
        }
        let drawn = state.drawn.get_or_insert_with(DrawnBar::new);
        drawn.bar.set(done >> 20, total >> 20, "MiB");
        drawn.last = Some(now);
    }
}

impl Drop for LoadBar {
    fn drop(&mut self) {
        self.load.state().ended = true;
        self.load.ended.notify_all();
        // Nothing is drawn behind what is said next.
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
        self.load.state().drawn = None;
    }
}

impl Load {
    fn state(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that it goes on, once the moment is over.
    fn announce(&self) {
        let goes_on = |state: &mut LoadState| !state.ended;
        let waited = self.ended.wait_timeout_while(self.state(), LoadBar::MOMENT, goes_on);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.ended && state.drawn.is_none() {
            state.drawn.insert(DrawnBar::new()).bar.begin();
        }
    }
}

impl LoadState {
    /// Whether it is time to draw how far the load is.
    fn is_due(&self, now: Instant) -> bool {
        match &self.drawn {
            Some(DrawnBar { last: Some(last), .. }) => now - *last >= LoadBar::PACE,
            Some(DrawnBar { last: None, .. }) => true,
            None => now - self.started >= LoadBar::MOMENT,
        }
    }
}

impl DrawnBar {
    fn new() -> Self {
        Self { bar: ProgressBar::new("loading"), last: None }
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
        io::stderr().write_all((clear_drawn().to_owned() + &escaped).as_bytes())?;
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
        let started = Instant::now();
        let after = |ms: u64| started + Duration::from_millis(ms);
        let (early, late, soon, later) = (after(999), after(1000), after(1099), after(1100));
        let mut load = LoadState { started, ended: false, drawn: None };
        assert!(!load.is_due(early) && load.is_due(late));
        let bar = || ProgressBar { label: String::new(), shown: false };
        load.drawn = Some(DrawnBar { bar: bar(), last: None });
        assert!(load.is_due(late), "at once in place of what said that it goes on");
        load.drawn = Some(DrawnBar { bar: bar(), last: Some(late) });
        assert!(!load.is_due(soon) && load.is_due(later));
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
