//! The reference of the program as Markdown, from what its argument parser knows.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Command};

/// Every command with its arguments, in the order of `--help`. The output depends on the parser
/// alone, not on the terminal.
pub fn markdown(program: &Command) -> String {
    let mut program = program.clone();
    program.build();
    let mut text = format!("# {}\n\n", program.get_name());
    text.push_str(
        "<!-- Generated: `cargo run -p ruvllm-pack -- reference > signing/pack/REFERENCE.md` -->\n\n",
    );
    about(&program, &mut text);
    if let Some(after) = program.get_after_help() {
        let _ = write!(text, "```text\n{}\n```\n\n", after.to_string().trim_end());
    }
    let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    text.push_str("| command | what it does |\n|---|---|\n");
    for command in program.get_subcommands().filter(visible) {
        let name = command.get_name();
        let line = sentence(command.get_about());
        let _ = writeln!(text, "| [`{name}`](#{name}) | {line} |");
    }
    text.push_str("\nEvery command takes:\n\n");
    program
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .for_each(|arg| argument(arg, &mut text));
    text.push('\n');
    for command in program.get_subcommands().filter(visible) {
        section(program.get_name(), command, 2, &mut text);
    }
    text.trim_end().to_owned() + "\n"
}

fn section(parent: &str, command: &Command, level: usize, text: &mut String) {
    let path = format!("{parent} {}", command.get_name());
    // The top level is known by the command's own name, so that links to it are short.
    let title = if level == 2 { command.get_name() } else { &path };
    let _ = write!(text, "{} {title}\n\n", "#".repeat(level));
    about(command, text);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let _ = write!(text, "```text\n{usage}\n```\n\n");
    let own = command.get_arguments();
    let own = own
        .filter(|arg| !arg.is_hide_set() && !arg.is_global_set())
        .filter(|arg| arg.get_id() != "help");
    let mut any = false;
    for arg in own {
        argument(arg, text);
        any = true;
    }
    if any {
        text.push('\n');
    }
    if let Some(after) = command.get_after_long_help() {
        let _ = write!(text, "```text\n{}\n```\n\n", after.to_string().trim_end());
    }
    for command in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        section(&path, command, level + 1, text);
    }
}

/// The long description where there is one: it begins with the short one.
fn about(command: &Command, text: &mut String) {
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        let _ = write!(text, "{}\n\n", sentence(Some(about)));
    }
}

/// A text with its full stop, which the parser takes away from texts of one line.
fn sentence(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    let text = text.trim_end();
    let ends = text.is_empty() || text.ends_with(['.', '}', ':', '?']);
    if ends { text.to_owned() } else { format!("{text}.") }
}

fn argument(arg: &Arg, text: &mut String) {
    let values: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let takes_values = arg.get_action().takes_values();
    let value = if takes_values { format!("<{}>", values.join("> <")) } else { String::new() };
    let mut name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => String::new(),
    };
    if !value.is_empty() {
        name = format!("{name} {value}").trim_start().to_owned();
    }
    let help = sentence(arg.get_long_help().or_else(|| arg.get_help()));
    let _ = write!(text, "- `{name}`: {}", help.replace("\n\n", " ").replace('\n', " "));
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    if takes_values && !defaults.is_empty() {
        let _ = write!(text, " Default: `{}`.", defaults.join(" "));
    }
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|choice| takes_values && !choice.is_hide_set())
        .map(|choice| match choice.get_help() {
            Some(help) => format!("`{}` ({help})", choice.get_name()),
            None => format!("`{}`", choice.get_name()),
        })
        .collect();
    if !choices.is_empty() {
        let _ = write!(text, " One of: {}.", choices.join(", "));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{ArgAction, CommandFactory as _};

    #[derive(clap::Parser)]
    #[command(name = "tool", about = "Does things.", after_help = "Exit codes: 0")]
    struct Cli {
        #[command(subcommand)]
        _command: Sub,
    }

    #[derive(clap::Subcommand)]
    enum Sub {
        /// Makes one.
        ///
        /// At length.
        Make {
            /// How many.
            #[arg(long, short, default_value_t = 3)]
            _count: u32,
            /// Whether.
            #[arg(long, action = ArgAction::SetTrue)]
            _dry: bool,
        },
        /// Unseen.
        #[command(hide = true)]
        Secret,
    }

    #[test]
    fn commands_arguments_and_defaults_are_there_and_hidden_ones_are_not() {
        let text = markdown(&Cli::command());
        for part in [
            "# tool\n",
            "Does things.",
            "Exit codes: 0",
            "| [`make`](#make) | Makes one. |",
            "Makes one.\n\nAt length.",
            "- `-c, --count <COUNT>`: How many. Default: `3`.",
            "- `--dry`: Whether.\n",
        ] {
            assert!(text.contains(part), "{part:?} in:\n{text}");
        }
        assert!(!text.contains("Unseen") && !text.contains("Secret"), "{text}");
        assert_eq!(text, markdown(&Cli::command()));
    }
}
