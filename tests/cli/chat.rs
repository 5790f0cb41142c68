//! Conversations: lines of a pipe, and a line editor at a terminal.

use crate::program::ruvllm_with_input;
use serde_json::{Value, json};
use std::path::Path;

const CHAT: [&str; 5] = ["chat", "-n", "8", "--temperature", "0"];

/// The messages of a file that `/save` has written.
fn saved(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn commands_stand_among_the_lines_of_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.json"), dir.path().join("second.json"));
    let lines = format!(
        "/system Tell a tale.\nOnce upon a time\n/save {0}\n/clear\n/save {1}\n/load {0}\nThe next day\n",
        first.display(),
        second.display()
    );
    let run = ruvllm_with_input(&[&CHAT[..], &["--no-history"]].concat(), &lines);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let answers: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(answers.len(), 2, "{}", run.stdout);
    let system = json!({"role": "system", "content": "Tell a tale."});
    let messages = json!([
        system,
        {"role": "user", "content": "Once upon a time"},
        {"role": "assistant", "content": answers[0]},
    ]);
    assert_eq!(saved(&first), messages);
    assert_eq!(saved(&second), json!([system]), "the system message stays");
    // What is loaded is read as what was said.
    let whole = "/system Tell a tale.\nOnce upon a time\nThe next day\n";
    assert_eq!(ruvllm_with_input(&CHAT, whole).stdout, run.stdout);
    // The system message may also be an option, and no line behind the end counts.
    let option = [&CHAT[..], &["--system", "Tell a tale."]].concat();
    let run = ruvllm_with_input(&option, "/system\nOnce upon a time\n/quit\nThe next day\n");
    assert_eq!(run.text(), answers[0]);
    assert!(run.stderr.contains("Tell a tale."), "{}", run.stderr);
}

#[test]
fn an_unknown_command_is_no_message() {
    let run = ruvllm_with_input(&CHAT, "/helo\n");
    run.refused(&["/helo", "/help", "/clear", "/system", "/save", "/load", "/quit"]);
    assert_eq!(run.stdout, "");
    ruvllm_with_input(&CHAT, "/load no/such/file\n").refused(&["no/such/file"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    ruvllm_with_input(&CHAT, &format!("/load {file}\n")).refused(&[file, "/save"]);
    // A space in front makes it a message.
    let run = ruvllm_with_input(&CHAT, " /helo\n");
    assert_eq!((run.code, run.stdout.lines().count()), (Some(0), 1), "{}", run.stderr);
}

#[cfg(unix)]
mod terminal {
    use super::{CHAT, saved};
    use crate::pty::{PROMPT, Terminal};
    use serde_json::json;

    #[test]
    fn lines_are_edited_repeated_and_continued() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let file = dir.path().join("chat.json");
        let args = [&CHAT[..], &["--state-dir", state.to_str().unwrap()]].concat();
        let mut terminal = Terminal::start(&args);
        assert!(terminal.wait_for(PROMPT).contains("/help lists the commands"));
        // Two characters are taken back; then the same line comes from the history.
        let answer = terminal.enter("Once upon a tinx\u{7f}\u{7f}me\r");
        assert!(answer.contains(", there was a little girl named Wren"), "{answer}");
        terminal.enter("\u{1b}[A\r");
        terminal.press("one\\\r");
        terminal.enter("two\r");
        // In quotes it is a message even with a slash in front.
        terminal.press("\"\"\"/three\r");
        terminal.enter("four\"\"\"\r");
        // An empty line is nothing, and what is no command is an error.
        terminal.enter("\r");
        let shown = terminal.enter("/nonsense\r");
        assert!(shown.contains("/nonsense is no command; there are /help, /clear"), "{shown}");
        let shown = terminal.enter("/he\t\r");
        assert!(shown.contains("/save FILE"), "{shown}");
        terminal.enter(&format!("/save {}\r", file.display()));
        let shown = terminal.enter("half a line\u{3}");
        assert!(shown.contains("Ctrl-C again ends the conversation"), "{shown}");
        terminal.press("/quit\r");
        assert_eq!(terminal.ended(), Some(0));
        let messages = saved(&file);
        let said: Vec<_> = messages.as_array().unwrap().iter().step_by(2).collect();
        let said: Vec<_> = said.iter().map(|message| &message["content"]).collect();
        assert_eq!(
            json!(said),
            json!(["Once upon a time", "Once upon a time", "one\ntwo", "/three\nfour"])
        );

        // The next conversation has the lines of this one.
        let mut terminal = Terminal::start(&args);
        terminal.wait_for(PROMPT);
        let shown = terminal.enter("\u{1b}[A\u{1b}[A\u{1b}[A\r");
        assert!(
            shown.contains("/nonsense is no command") || shown.contains("/save FILE"),
            "{shown}"
        );
        // Twice at the prompt it ends.
        terminal.enter("\u{3}");
        terminal.press("\u{3}");
        assert_eq!(terminal.ended(), Some(130));
    }

    #[test]
    fn nothing_is_kept_of_what_is_entered_where_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let state = ["--state-dir", dir.path().to_str().unwrap()];
        for (option, kept) in [(&["--no-history"][..], false), (&[], true)] {
            let mut terminal = Terminal::start(&[&CHAT[..], &state, option].concat());
            terminal.wait_for(PROMPT);
            terminal.enter("Once upon a time\r");
            terminal.press("\u{4}");
            assert_eq!(terminal.ended(), Some(0));
            assert_eq!(dir.path().join("chat-history").exists(), kept, "{option:?}");
        }
        use std::os::unix::fs::PermissionsExt as _;
        let mode = dir.path().join("chat-history").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others can read it: {mode:o}");
    }

    #[test]
    fn ctrl_c_stops_an_answer_and_says_what_a_second_one_does() {
        // Slow, so that the answer is not over before.
        let args = ["chat", "-n", "400", "--no-repack", "-t", "1", "--no-history"];
        let mut terminal = Terminal::start(&args);
        terminal.wait_for(PROMPT);
        terminal.press("Once upon a time\r");
        terminal.wait_for("\u{1b}[?2004l");
        terminal.interrupt();
        let shown = terminal.wait_for(PROMPT);
        let (_, behind) = shown.split_once("Ctrl-C again ends the program at once").unwrap();
        // But for what switches the terminal.
        let behind = behind.strip_suffix(PROMPT).unwrap_or(behind);
        let mut parts = behind.split('\u{1b}');
        let first = parts.next().into_iter();
        let text = first.chain(parts.map(|part| {
            part.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, text)| text)
        }));
        let text: String = text.collect();
        assert!(text.trim().is_empty(), "text came behind it: {shown:?}");
        terminal.press("/quit\r");
        assert_eq!(terminal.ended(), Some(0));
    }

    #[test]
    fn a_second_ctrl_c_during_an_answer_ends_the_program() {
        // Its model reads for seconds before it says anything, so that both are heard within the answer.
        let system = "Tell of a little cat in a big house. ".repeat(250);
        let slow =
            ["--isa", "scalar", "--no-repack", "-t", "1", "-c", "4096", "--rope-scaling", "linear"];
        let args = [&["chat", "-n", "8", "--no-history", "--system", &system], &slow[..]].concat();
        let mut terminal = Terminal::start(&args);
        terminal.wait_for(PROMPT);
        terminal.press("Once upon a time\r");
        terminal.wait_for("\u{1b}[?2004l");
        terminal.interrupt();
        terminal.wait_for("Ctrl-C again ends the program at once");
        terminal.interrupt();
        assert_eq!(terminal.ended(), Some(130));
    }
}
