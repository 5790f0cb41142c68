//! Where messages come from: a line editor at a terminal, plain lines otherwise.

use super::super::Failure;
use super::super::terminal::{self, note};
use super::command;
use rustyline::completion::Completer;
use rustyline::config::CompletionType;
use rustyline::error::{ReadlineError, Signal};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use std::io::{self, BufRead as _, IsTerminal as _, StdinLock, Write as _};
use std::path::{Path, PathBuf};

const PROMPT: &str = "> ";

/// Entries that are kept.
const HISTORY: usize = 1000;

/// Around a message of several lines.
const QUOTES: &str = "\"\"\"";

/// What somebody entered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A command, if it begins with a slash.
    Line(String),
    /// What stood in quotes: a message, whatever it begins with.
    Message(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Nothing more will come.
    End,
}

pub(super) enum Input {
    Editor(Box<LineEditor>),
    /// Each line is an entry, and an empty one is the last.
    Lines {
        lines: io::Lines<StdinLock<'static>>,
        prompt: bool,
    },
}

/// An editor for lines, with the entries of earlier conversations.
pub(super) struct LineEditor {
    editor: Editor<Rules, FileHistory>,
    history: Option<PathBuf>,
}

impl Input {
    /// Reads from standard input; at a terminal with a line editor, which keeps what was entered in the
    /// file `history`, if there is one.
    ///
    /// # Errors
    /// Where the terminal cannot be used.
    pub(super) fn open(history: Option<PathBuf>) -> Result<Self, Failure> {
        let (stdin, stdout) = (io::stdin().is_terminal(), io::stdout().is_terminal());
        if stdin && stdout {
            return Ok(Self::Editor(Box::new(LineEditor::open(history)?)));
        }
        // The editor would write to where the answers go.
        Ok(Self::Lines { lines: io::stdin().lock().lines(), prompt: stdin })
    }

    /// Whether somebody sits at it.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Editor(_) | Self::Lines { prompt: true, .. })
    }

    /// The next entry.
    ///
    /// # Errors
    /// Where standard input cannot be read or is no text.
    pub(super) fn next(&mut self) -> Result<Entry, Failure> {
        match self {
            Self::Editor(editor) => editor.next(),
            Self::Lines { lines, prompt } => {
                if *prompt {
                    terminal::beginning(PROMPT);
                    io::stderr().flush()?;
                }
                let line = lines.next().transpose()?.filter(|line| !line.trim().is_empty());
                Ok(line.map_or(Entry::End, Entry::Line))
            }
        }
    }
}

impl LineEditor {
    fn open(history: Option<PathBuf>) -> Result<Self, Failure> {
        let config = Config::builder().max_history_size(HISTORY)?;
        let config = config.completion_type(CompletionType::List).build();
        let mut editor = Editor::with_history(config.clone(), FileHistory::with_config(&config))?;
        editor.set_helper(Some(Rules));
        let mut history = history;
        if let Some(path) = history.take_if(|path| prepare(&mut editor, path).is_err()) {
            note!("warning: what you enter is not kept, since {} cannot be used", path.display());
        }
        Ok(Self { editor, history })
    }

    fn next(&mut self) -> Result<Entry, Failure> {
        loop {
            let entry = match self.editor.readline(PROMPT) {
                Ok(entry) => entry,
                Err(ReadlineError::Interrupted) => return Ok(Entry::Interrupted),
                Err(ReadlineError::Eof) => return Ok(Entry::End),
                // The window has another size.
                Err(ReadlineError::Signal(Signal::Resize)) => continue,
                #[cfg(unix)]
                Err(ReadlineError::Signal(Signal::Interrupt)) => return Ok(Entry::Interrupted),
                Err(error) => return Err(error.into()),
            };
            if entry.trim().is_empty() {
                continue;
            }
            self.editor.add_history_entry(entry.as_str())?;
            // At once: a second Ctrl-C ends the process.
            if let Some(path) = &self.history
                && let Err(error) = self.editor.append_history(path)
            {
                note!("warning: what you enter is not kept: {}: {error}", path.display());
                self.history = None;
            }
            return Ok(parse(&entry));
        }
    }
}

/// Reads the entries of earlier conversations, and makes a place for new ones.
fn prepare(editor: &mut Editor<Rules, FileHistory>, path: &Path) -> rustyline::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if path.exists() { editor.load_history(path) } else { Ok(()) }
}

/// Whether an entry goes on in a further line.
fn goes_on(entry: &str) -> bool {
    match entry.trim_start().strip_prefix(QUOTES) {
        Some(rest) => !rest.trim_end().ends_with(QUOTES),
        None => entry.ends_with('\\'),
    }
}

/// What was entered, without what holds its lines together.
fn parse(entry: &str) -> Entry {
    let quoted = entry.trim().strip_prefix(QUOTES).and_then(|rest| rest.strip_suffix(QUOTES));
    match quoted {
        Some(text) => Entry::Message(text.trim_matches('\n').to_owned()),
        None => Entry::Line(entry.replace("\\\n", "\n")),
    }
}

/// What is completed, and where an entry ends.
struct Rules;

impl Helper for Rules {}
impl Highlighter for Rules {}

impl Hinter for Rules {
    type Hint = String;
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = &line[..pos];
        let fits = |name: &&str| begun.starts_with('/') && name.starts_with(begun);
        Ok((0, command::names().filter(fits).map(str::to_owned).collect()))
    }
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = goes_on(context.input());
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_may_have_several_lines() {
        let (line, message): (fn(String) -> Entry, _) = (Entry::Line, Entry::Message);
        for (entry, kind, text) in [
            ("one", line, "one"),
            ("one\\\ntwo", line, "one\ntwo"),
            ("\"\"\"one\n\ntwo\"\"\"", message, "one\n\ntwo"),
            ("\"\"\"\none\\\ntwo\n\"\"\" ", message, "one\\\ntwo"),
            ("\"\"\"/quit\"\"\"", message, "/quit"),
            ("\"\"\"\"\"\"", message, ""),
        ] {
            assert!(!goes_on(entry), "{entry:?}");
            assert_eq!(parse(entry), kind(text.to_owned()), "{entry:?}");
        }
        for begun in ["one\\", "\"\"\"", "\"\"\"one\ntwo", " \"\"\"one\\"] {
            assert!(goes_on(begun), "{begun:?}");
        }
    }
}
