//! The examples of the pages: commands are run, and print what the page says they print.
//!
//! In a block of `console`, a line with `$ ` in front is a command, and what follows it up to the next is its
//! output. Where the page shows none, any will do. `<...>` stands for any text within a line, a line `...` for any
//! lines. Blocks of one page share a directory, in which the folders of the repository can be seen. In a block of
//! `sh` commands are not run, since they need something that only the reader has; that their options exist is seen.

use crate::program::{caches, pack_tool, repository};
use std::path::Path;
use std::process::Command;

/// In front of what a command prints, with its number.
const MARK: char = '\u{1}';

/// A command with the output that the page shows.
struct Step {
    command: String,
    shown: Vec<String>,
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ruvllm"))
}

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join(page)).expect("a page");
    let opening = format!("```{language}\n");
    let ends = |rest: &str| rest.split("\n```\n").next().unwrap_or_default().to_owned();
    text.split(&opening).skip(1).map(ends).collect()
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => {
                steps.push(Step { command: command.to_owned(), shown: Vec::new() });
            }
            (None, Some(step)) if step.shown.is_empty() && step.command.ends_with('\\') => {
                step.command.push('\n');
                step.command.push_str(line);
            }
            (None, Some(step)) => step.shown.push(line.to_owned()),
            (None, None) => panic!("a block begins with a command: {line}"),
        }
    }
    steps
}

/// Whether a line is what the page shows.
fn line_matches(shown: &str, line: &str) -> bool {
    let mut parts = shown.split("<...>");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

fn matches(shown: &[String], lines: &[&str]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((first, shown)) if first == "..." => {
            (0..=lines.len()).any(|skip| matches(shown, &lines[skip..]))
        }
        Some((first, shown)) => lines
            .split_first()
            .is_some_and(|(line, lines)| line_matches(first, line) && matches(shown, lines)),
    }
}

/// Runs the commands of a page, block by block.
fn run(page: &str) {
    run_blocks(page, &blocks(page, "console"));
}

fn run_blocks(page: &str, blocks: &[String]) {
    let place = tempfile::tempdir().expect("a directory");
    for folder in ["kernel-packs", "kernel-sdk", "manifests", "runtime", "signing", "tests"] {
        std::os::unix::fs::symlink(repository().join(folder), place.path().join(folder)).unwrap();
    }
    let programs = program().parent().expect("a directory");
    let path = std::env::join_paths(
        [programs.to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    assert!(!blocks.is_empty(), "{page} has no examples");
    for block in blocks {
        let steps = steps(block);
        let mut script = "set -e\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n".to_owned();
        for (number, Step { command, .. }) in steps.iter().enumerate() {
            script += &format!("printf '\\001{number}\\n'\n{command}\n");
        }
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(place.path())
            .env("PATH", path.as_ref().expect("a path"))
            .env("HOME", place.path())
            .env("XDG_CACHE_HOME", caches())
            .env("XDG_STATE_HOME", place.path().join("state"))
            .output()
            .expect("bash starts");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}: {}\n{stdout}\n{stderr}", output.status);
        for (printed, Step { command, shown }) in stdout.split(MARK).skip(1).zip(&steps) {
            // The first line has the number of the command.
            let lines: Vec<&str> = printed.trim_end().lines().skip(1).collect();
            let shown_end = shown.iter().rposition(|line| !line.trim().is_empty());
            let shown = &shown[..shown_end.map_or(0, |last| last + 1)];
            assert!(
                shown.is_empty() || matches(shown, &lines),
                "{page}: $ {command}\nshows\n{}\nand prints\n{}\n{stderr}",
                shown.join("\n"),
                lines.join("\n"),
            );
        }
    }
}

/// What `PROGRAM COMMAND... --help` prints, if there is that command.
fn help(program: &Path, commands: &[&str]) -> Option<String> {
    let output = Command::new(program).args(commands).arg("--help").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sees that commands and long options of a line exist.
fn check_options(page: &str, line: &str, pack_tool: &Path) {
    let line = line.split(" #").next().unwrap_or_default();
    let line = line.replace("cargo run --release -- ", "ruvllm ");
    let words: Vec<&str> = line.split_whitespace().collect();
    let program = match words.first() {
        Some(&"ruvllm") => program(),
        Some(&"ruvllm-pack") => pack_tool,
        _ => return,
    };
    // Some commands have commands of their own.
    let depth = if ["kernels", "trust", "keyring"].contains(&words[1]) { 2 } else { 1 };
    let help = words.get(1..=depth).and_then(|commands| help(program, commands));
    let help = help.unwrap_or_else(|| panic!("{page}: no such command: {line}"));
    for option in words.iter().filter(|word| word.starts_with("--")) {
        let option = option.split('=').next().unwrap_or_default();
        assert!(
            help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
                .any(|word| word == option),
            "{page}: {option} is no option of: {line}"
        );
    }
}

fn check(page: &str) {
    let Some(pack_tool) = pack_tool() else { return };
    run(page);
    for block in blocks(page, "sh") {
        block.replace("\\\n", " ").lines().for_each(|line| check_options(page, line, &pack_tool));
    }
}

#[test]
fn the_readme_shows_what_happens_within_150_lines() {
    check("README.md");
    let text = std::fs::read_to_string(repository().join("README.md")).expect("the page");
    assert!(text.lines().count() <= 150);
}

#[test]
fn the_guide_to_the_program_shows_what_happens() {
    check("runtime/ruvllm/GUIDE.md");
}

#[test]
fn the_guide_to_the_server_shows_what_happens() {
    check("runtime/server/GUIDE.md");
}

/// Its blocks ask one server, which the first of them starts.
#[test]
fn the_reference_of_the_api_shows_what_happens_for_every_route() {
    const PAGE: &str = "runtime/server/API.md";
    let blocks = blocks(PAGE, "console");
    let commands: String =
        blocks.iter().flat_map(|block| block.lines().map(|l| l.to_owned() + "\n")).collect();
    run_blocks(PAGE, &[blocks.join("\n")]);
    let routes = std::fs::read_to_string(repository().join("runtime/server/src/app.rs")).unwrap();
    let routes = routes.split("\"/v1/").skip(1).filter_map(|route| route.split('"').next());
    for route in routes.chain(["messages"]) {
        let asked = format!("$ curl -s $api/{}", route.replace("{*id}", "tales"));
        assert!(commands.contains(&asked), "{PAGE} has no example of /v1/{route}");
    }
}

#[test]
fn the_page_on_deployments_shows_what_happens() {
    check("runtime/server/deploy/README.md");
}

#[test]
fn the_guide_to_packs_shows_what_happens() {
    check("signing/pack/GUIDE.md");
}

#[test]
fn outputs_are_compared_as_the_pages_say() {
    let shown = ["a <...> c", "...", "z"].map(str::to_owned);
    assert!(matches(&shown, &["a b c", "z"]));
    assert!(matches(&shown, &["a  c", "x", "y", "z"]));
    assert!(!matches(&shown, &["a b d", "z"]));
    assert!(!matches(&shown, &["a b c", "z", "more"]));
    assert!(!line_matches("a<...>b<...>c", "a c"));
    assert!(line_matches("a<...>b<...>c", "a1b2c"));
}
