//! What is typed at a conversation without being a message: `/help` and the other commands.

use std::path::PathBuf;

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Clear,
    /// Sets the system message, or shows it.
    System(Option<String>),
    Save(PathBuf),
    Load(PathBuf),
    Quit,
}

/// The commands as `/help` lists them: how each is written, and what it does.
pub(super) const COMMANDS: [(&str, &str); 6] = [
    ("/help", "list these commands"),
    ("/clear", "forget all messages but the system message"),
    ("/system [TEXT]", "set the system message, or show it"),
    ("/save FILE", "write the messages to a file, as JSON"),
    ("/load FILE", "go on with the messages of such a file"),
    ("/quit", "end the conversation, as Ctrl-D does"),
];

/// The names of the commands.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(usage, _)| usage.split(' ').next().unwrap_or(usage))
}

/// The command that a line is; `None` for a message, which does not begin with a slash.
///
/// # Errors
/// What is wrong with a line that begins with one.
pub(super) fn parse(line: &str) -> Result<Option<Command>, String> {
    if !line.starts_with('/') {
        return Ok(None);
    }
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let file = || match rest {
        "" => Err(format!("{name} takes the name of a file: {name} chat.json")),
        path => Ok(PathBuf::from(path)),
    };
    let command = match name {
        "/system" => Command::System((!rest.is_empty()).then(|| rest.to_owned())),
        "/save" => Command::Save(file()?),
        "/load" => Command::Load(file()?),
        "/help" | "/clear" | "/quit" if !rest.is_empty() => {
            return Err(format!("{name} stands alone on its line"));
        }
        "/help" => Command::Help,
        "/clear" => Command::Clear,
        "/quit" => Command::Quit,
        _ => {
            let known: Vec<&str> = names().collect();
            return Err(format!(
                "{name} is no command; there are {}. Put a space in front of a message that begins with a slash.",
                known.join(", ")
            ));
        }
    };
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_the_list_is_known_and_nothing_else_is() {
        for name in names() {
            assert!(parse(&format!("{name} x")).is_ok() || parse(name).is_ok(), "{name}");
        }
        assert_eq!(parse("hello /quit"), Ok(None));
        assert_eq!(parse(" /quit"), Ok(None));
        assert_eq!(parse("/quit"), Ok(Some(Command::Quit)));
        assert_eq!(
            parse("/system  Be brief. "),
            Ok(Some(Command::System(Some("Be brief.".into()))))
        );
        assert_eq!(parse("/system"), Ok(Some(Command::System(None))));
        assert_eq!(parse("/save my chat.json"), Ok(Some(Command::Save("my chat.json".into()))));
        let unknown = parse("/helo there").unwrap_err();
        for name in names() {
            assert!(unknown.contains(name), "{unknown}");
        }
        for line in ["/save", "/load ", "/quit now", "/"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
