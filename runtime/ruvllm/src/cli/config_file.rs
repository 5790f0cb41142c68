//! Options of `ruvllm serve` from elsewhere than the command line: a TOML file, and the environment.
//!
//! There is one definition of every option, the command line's. A table of the file is a heading of
//! `--help`, a key is an option's long name, and a value is read by the option's own parser; so the
//! file knows no option that the command line does not, and both mean the same. So do variables, whose
//! names follow from those of the options. The command line wins over the environment, and that over the
//! file, also where one says what another excludes.

use super::Failure;
use super::args::{self, Cli, ServeArgs};
use super::device_class::DeviceClassOption;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, Parser as _};
use ruvllm::host::DeviceClass;
use ruvllm::signing::escape_untrusted;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The command that has the options.
const SERVE: &str = "serve";

/// Where the text of a comment wraps.
const WIDTH: usize = 98;

/// Options outside of the file's tables that have a variable all the same.
const UNTABLED: [&str; 2] = ["config", "log"];

/// The option that prints a configuration, which nothing from elsewhere changes, and what may stand beside it.
const PRINT: &str = "print-config";
const BESIDE_PRINT: [&str; 2] = ["device-class", "log"];

/// In front of the names of variables.
const PREFIX: &str = "RUVLLM_";

/// Options whose variable has another name than theirs: `RUVLLM_ADMIN_KEY` is the secret with which the
/// `kernels` commands connect.
const RENAMED: [(&str, &str); 1] = [("admin-key", "RUVLLM_ADMIN_KEYS")];

/// Between the values of a variable for an option that may be given several times.
const SEPARATOR: char = ';';

/// Looks a variable up.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads the command line, which begins with the program's name, and under its options those of the
/// environment and of the file that is named. Ends the process where the line asks for help or is wrong by
/// itself.
pub(crate) fn parse(line: &[OsString]) -> Result<Cli, Failure> {
    let alone = Cli::try_parse_from(line);
    // What an option requires may be elsewhere.
    let lacking = |error: &clap::Error| error.kind() == ErrorKind::MissingRequiredArgument;
    let given = match &alone {
        Err(error) if !lacking(error) => None,
        _ => given(line)?,
    };
    if let Some(given) = &given {
        check_printed(given).unwrap_or_else(|error| error.exit());
    }
    let layered = given.map(|given| merge(line, &given, &variable_value));
    match layered.transpose()?.flatten() {
        Some(cli) => Ok(cli),
        None => Ok(alone.unwrap_or_else(|error| models_place(line, error).exit())),
    }
}

/// The error itself, or, where an argument stands that the command has none of and a model may be meant, one
/// that says how a model is given.
fn models_place(line: &[OsString], error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument || given.starts_with('-') {
        return error;
    }
    let mut cli = Cli::command();
    let named = line.iter().skip(1).find_map(|word| cli.find_subcommand(word));
    let takes_model = |command: &&clap::Command| {
        command.get_arguments().any(|arg| arg.get_id() == "model" && arg.get_short() == Some('m'))
    };
    let Some(name) = named.filter(takes_model).map(|command| command.get_name().to_owned()) else {
        return error;
    };
    let usage = format!(
        "{given:?} stands where `ruvllm {name}` has no argument; a model is an option: `ruvllm {name} -m {given}`"
    );
    cli.error(ErrorKind::UnknownArgument, escape_untrusted(&usage))
}

/// Options whose change takes effect while a server runs.
const RELOADED: [&str; 6] = ["api-key", "admin-key", "tls-cert", "tls-key", "trust", "lock"];

/// Where the options of a server come from, to be read anew.
pub(crate) struct Source {
    line: Vec<OsString>,
    /// The configuration file, if one is named, as it was at first.
    file: Option<(PathBuf, Table)>,
}

impl Source {
    /// The source of a `serve` with this command line, which was read from it before.
    pub(crate) fn new(line: Vec<OsString>) -> Result<Source, Failure> {
        let path = given(&line)?.and_then(|given| file_of(&given, &variable_value));
        let file = path.map(|path| -> Result<_, Failure> {
            let table = read(&path)?;
            Ok((path, table))
        });
        Ok(Source { line, file: file.transpose()? })
    }

    /// The options as they are by now, and the names of those that are different in the file and take effect
    /// when the server starts again.
    pub(crate) fn read(&self) -> Result<(ServeArgs, Vec<String>), Failure> {
        let given = given(&self.line)?.unwrap_or_default();
        let cli = match merge(&self.line, &given, &variable_value)? {
            Some(cli) => cli,
            None => Cli::try_parse_from(&self.line)?,
        };
        let mut restart = Vec::new();
        if let Some((path, before)) = &self.file {
            let command = command();
            let wins = |key: &str| {
                let arg = command.get_arguments().find(|arg| name(arg) == key);
                arg.is_some_and(|arg| {
                    from_line(&given, arg) || variable_value(&variable(arg)).is_some()
                })
            };
            let waits = |key: &String| !RELOADED.contains(&&**key) && !wins(key);
            restart = differing(before, &read(path)?).into_iter().filter(waits).collect();
        }
        match cli.command {
            args::Command::Serve(args) => Ok((*args, restart)),
            _ => Err("the command line is none of `serve`".into()),
        }
    }
}

/// What is in a configuration file.
fn read(path: &Path) -> Result<Table, Failure> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    Ok(text.parse().map_err(|error: toml::de::Error| failed(&error))?)
}

/// A variable of the process. An empty one is as good as none.
fn variable_value(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The configuration file that the command line or the environment names.
fn file_of(given: &ArgMatches, environment: Environment) -> Option<PathBuf> {
    let named = given.get_one::<PathBuf>("config").cloned();
    named.or_else(|| environment("RUVLLM_CONFIG").map(PathBuf::from))
}

/// Names of the options that two files give different values, or that one of them alone gives.
fn differing(old: &Table, new: &Table) -> Vec<String> {
    let options = |file: &Table| -> BTreeMap<String, Value> {
        let tables = file.values().filter_map(Value::as_table);
        tables.flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let (old, new) = (options(old), options(new));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    keys.into_iter().filter(|&key| old.get(key) != new.get(key)).cloned().collect()
}

/// Whether the command line itself gives an option.
fn from_line(given: &ArgMatches, arg: &Arg) -> bool {
    given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// What the command line gives to `serve`, whether or not it is complete; `None` for other commands.
fn given(line: &[OsString]) -> Result<Option<ArgMatches>, clap::Error> {
    let mut matches = Cli::command().ignore_errors(true).try_get_matches_from(line)?;
    Ok(matches.remove_subcommand().and_then(|(name, matches)| (name == SERVE).then_some(matches)))
}

/// Refuses options beside `--print-config` that it does not print the values of.
fn check_printed(given: &ArgMatches) -> Result<(), clap::Error> {
    let command = command();
    let options = command.get_arguments().filter(|arg| !is_help(arg) && from_line(given, arg));
    let (printing, others): (Vec<_>, Vec<_>) = options.map(name).partition(|name| *name == PRINT);
    let other = others.iter().find(|name| !BESIDE_PRINT.contains(name));
    match other.filter(|_| !printing.is_empty()) {
        None => Ok(()),
        Some(other) => {
            let why = format!("--{PRINT} cannot be used with --{other}");
            Err(Cli::command().error(ErrorKind::ArgumentConflict, why))
        }
    }
}

/// The options of the command line, which gives these to `serve`, under them those of the environment, and
/// under them those of a file; `None` where the command line says all.
fn merge(
    line: &[OsString],
    given: &ArgMatches,
    environment: Environment,
) -> Result<Option<Cli>, Failure> {
    let command = command();
    let options = command.get_arguments().filter(|arg| !is_help(arg));
    let mut above: Vec<&Arg> = options.filter(|arg| from_line(given, arg)).collect();
    if above.iter().any(|arg| arg.is_exclusive_set() || name(arg) == PRINT) {
        return Ok(None);
    }
    let with = |options: &[OsString]| {
        let serve = line.iter().position(|arg| arg == SERVE).map_or(line.len(), |at| at + 1);
        let (before, after) = line.split_at(serve);
        Cli::try_parse_from([before, options, after].concat())
    };
    let Variables { mut options, of, config } = variables(&command, environment, &above)?;
    let file = given.get_one::<PathBuf>("config").map(PathBuf::as_path).or(config.as_deref());
    if file.is_none() && of.is_empty() {
        return Ok(None);
    }
    let mut parsed = with(&options);
    if let Err(error) = &parsed
        && error.kind() != ErrorKind::MissingRequiredArgument
    {
        let names: Vec<String> = of.iter().map(|arg| variable(arg)).collect();
        return Err(format!("{} of the environment: {error}", names.join(", ")).into());
    }
    above.extend(&of);
    if let Some(path) = file {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let table = read(path)?;
        options.extend(arguments(&command, &table, &above).map_err(|error| failed(&error))?);
        parsed = with(&options);
        if let Err(error) = &parsed {
            return Err(failed(error).into());
        }
    }
    Ok(Some(parsed?))
}

/// What the environment says.
struct Variables<'a> {
    /// As arguments.
    options: Vec<OsString>,
    /// The options that they are of.
    of: Vec<&'a Arg>,
    /// The configuration file.
    config: Option<PathBuf>,
}

/// The options of the environment, without what those `above` say or exclude. An empty variable is as good
/// as none.
fn variables<'a>(
    command: &'a Command,
    environment: Environment,
    above: &[&Arg],
) -> Result<Variables<'a>, Failure> {
    let mut variables = Variables { options: Vec::new(), of: Vec::new(), config: None };
    for arg in command.get_arguments().filter(|arg| has_variable(arg)) {
        let value = environment(&variable(arg)).filter(|value| !value.is_empty());
        let Some(value) = value.filter(|_| !is_settled(command, arg, above)) else { continue };
        let mut one = |value: &OsStr| {
            let mut option = OsString::from(format!("--{}=", name(arg)));
            option.push(value);
            variables.options.push(option);
        };
        if is_switch(arg) {
            match value.to_string_lossy().to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => {
                    variables.options.push(format!("--{}", name(arg)).into());
                }
                "false" | "0" | "no" | "off" => {}
                _ => return Err(format!("{} must be true or false", variable(arg)).into()),
            }
        } else if is_list(arg) {
            let text = value.to_str().ok_or_else(|| format!("{} is not UTF-8", variable(arg)))?;
            text.split(SEPARATOR)
                .filter(|part| !part.is_empty())
                .for_each(|part| one(part.as_ref()));
        } else {
            one(&value);
        }
        if name(arg) == "config" {
            variables.config = Some(PathBuf::from(value));
        }
        variables.of.push(arg);
    }
    Ok(variables)
}

/// Whether an option can be given by a variable.
fn has_variable(arg: &Arg) -> bool {
    table_of(arg).is_some() || UNTABLED.contains(&name(arg))
}

/// The variable of an option.
fn variable(arg: &Arg) -> String {
    let renamed = RENAMED.iter().find(|(option, _)| *option == name(arg));
    let by_rule = || format!("{PREFIX}{}", name(arg).to_ascii_uppercase().replace('-', "_"));
    renamed.map_or_else(by_rule, |(_, variable)| (*variable).to_owned())
}

/// Whether an option, or another that excludes it, is given `above`.
fn is_settled(command: &Command, arg: &Arg, above: &[&Arg]) -> bool {
    let excludes = |a: &Arg, b: &Arg| {
        command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id())
    };
    above
        .iter()
        .any(|other| other.get_id() == arg.get_id() || excludes(other, arg) || excludes(arg, other))
}

/// A file with every option: what it does, and its default, as a comment. A device class that is not the default
/// is set, and what it stands for is said.
pub(crate) fn template(class: DeviceClassOption) -> String {
    let mut text = String::from(
        "# Options of `ruvllm serve --config FILE`, with their defaults. Generated by\n# `ruvllm serve --print-config`.\n",
    );
    let command = command();
    for table in tables(&command) {
        text += &format!("\n[{table}]\n");
        for arg in command.get_arguments().filter(|arg| table_of(arg).as_ref() == Some(&table)) {
            text += &format!("\n{}", comment(arg));
            if name(arg) == "device-class" {
                text += &device_class(arg, class.class());
            } else {
                text += &format!("# {} = {}\n", name(arg), default(arg));
            }
        }
    }
    text
}

/// The option of the device class, under what the class stands for.
fn device_class(arg: &Arg, class: DeviceClass) -> String {
    let values = class.config().class_values().into_iter();
    let mut text = format!("# Values of {class}:\n");
    text.extend(values.map(|(name, value)| format!("#   {name:<19} {value}\n")));
    let value = Value::from(class.name()).to_string();
    let mark = if value == default(arg) { "# " } else { "" };
    text + &format!("{mark}{} = {value}\n", name(arg))
}

fn command() -> Command {
    let mut program = Cli::command();
    program.build();
    program.find_subcommand(SERVE).cloned().unwrap_or_default()
}

/// Whether an argument is the parser's own.
fn is_help(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

/// The table that an option belongs to; what has none acts at once and configures nothing.
fn table_of(arg: &Arg) -> Option<String> {
    arg.get_help_heading().map(str::to_ascii_lowercase)
}

fn tables(command: &Command) -> Vec<String> {
    let mut tables: Vec<String> = Vec::new();
    for table in command.get_arguments().filter_map(table_of) {
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables
}

fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The options of a file as arguments, without what those `above` say or exclude.
fn arguments(command: &Command, file: &Table, above: &[&Arg]) -> Result<Vec<OsString>, Failure> {
    let mut arguments = Vec::new();
    for (table, options) in file {
        let Value::Table(options) = options else {
            let known = tables(command).join("], [");
            return Err(format!("`{table}` is in no table; there are [{known}]").into());
        };
        for (key, value) in options {
            let in_table = |arg: &&Arg| table_of(arg).as_ref() == Some(table);
            let known: Vec<&Arg> = command.get_arguments().filter(in_table).collect();
            let Some(arg) = known.iter().find(|arg| name(arg) == key) else {
                let known: Vec<&str> = known.into_iter().map(name).collect();
                let known = known.join(", ");
                return Err(format!("[{table}] has no option `{key}`; it has: {known}").into());
            };
            if !is_settled(command, arg, above) {
                append(arg, value, &mut arguments).ok_or_else(|| {
                    let kind = match (is_switch(arg), is_list(arg)) {
                        (true, _) => "true or false",
                        (_, true) => "a list",
                        _ => "a text or a number",
                    };
                    format!("`{key}` in [{table}] must be {kind}")
                })?;
            }
        }
    }
    Ok(arguments)
}

fn append(arg: &Arg, value: &Value, arguments: &mut Vec<OsString>) -> Option<()> {
    let name = name(arg);
    let mut one = |value: &Value| {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(_) | Value::Float(_) => value.to_string(),
            _ => return None,
        };
        arguments.push(format!("--{name}={text}").into());
        Some(())
    };
    match value {
        Value::Array(values) if is_list(arg) => values.iter().try_for_each(one),
        Value::Boolean(on) if is_switch(arg) => {
            if *on {
                arguments.push(format!("--{name}").into());
            }
            Some(())
        }
        value if !is_switch(arg) && !is_list(arg) => one(value),
        _ => None,
    }
}

/// What an option does, as lines of comment.
fn comment(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut help = help.map(ToString::to_string).unwrap_or_default().trim_end().to_owned();
    if !help.ends_with('.') {
        help.push('.');
    }
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| !is_switch(arg))
        .map(|choice| {
            let help = choice.get_help().map(ToString::to_string).unwrap_or_default();
            format!("{} ({help})", choice.get_name())
        })
        .collect();
    if !choices.is_empty() {
        help += &format!(" One of: {}.", choices.join(", "));
    }
    let mut text = String::new();
    for paragraph in help.split("\n\n") {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                text += &line;
                text.push('\n');
                line = String::from("#");
            }
            line.push(' ');
            line += word;
        }
        text += &line;
        text.push('\n');
    }
    text
}

/// The default as TOML; what an option may look like where it has none.
fn default(arg: &Arg) -> String {
    if is_switch(arg) {
        return "false".to_owned();
    }
    if is_list(arg) {
        return "[]".to_owned();
    }
    let default = arg.get_default_values().first().map(|value| value.to_string_lossy());
    let default = default.unwrap_or_default();
    match (default.parse::<i64>(), default.parse::<f64>()) {
        (Ok(number), _) => number.to_string(),
        (_, Ok(number)) => Value::Float(number).to_string(),
        _ => Value::String(default.into_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn merged_all(
        variables: &[(&str, &str)],
        file: &str,
        line: &[&str],
    ) -> Result<(Option<args::LogLevel>, ServeArgs), String> {
        let mut config = tempfile::NamedTempFile::new().expect("a file");
        config.write_all(file.as_bytes()).expect("room");
        let environment = |name: &str| match name {
            "RUVLLM_CONFIG" => Some(config.path().into()),
            _ => variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()),
        };
        let line: Vec<OsString> = line.iter().map(OsString::from).collect();
        let given = given(&line).map_err(|error| error.to_string())?.expect("`serve`");
        let merged = merge(&line, &given, &environment).map_err(|error| error.to_string())?;
        let Cli { log, command } = merged.expect("there is a file");
        match command {
            args::Command::Serve(mut args) => {
                // Another one each time.
                args.config = None;
                Ok((log, *args))
            }
            other => Err(format!("{other:?}")),
        }
    }

    fn merged_line(
        file: &str,
        line: &[&str],
    ) -> Result<(Option<args::LogLevel>, ServeArgs), String> {
        merged_all(&[], file, line)
    }

    fn merged(file: &str, given: &[&str]) -> Result<ServeArgs, String> {
        let line = [&["ruvllm", "serve"], given].concat();
        merged_line(file, &line).map(|(_, args)| args)
    }

    fn merged_env(
        variables: &[(&str, &str)],
        file: &str,
        given: &[&str],
    ) -> Result<ServeArgs, String> {
        let line = [&["ruvllm", "serve"], given].concat();
        merged_all(variables, file, &line).map(|(_, args)| args)
    }

    #[test]
    fn the_environment_wins_over_the_file_and_the_command_line_over_both() {
        let file = "[limits]\nqueue = 6\nparallel = 5\nmax-choices = 4\n[kernels]\npack = ['a']\ncache-dir = 'c'";
        let variables = [
            ("RUVLLM_QUEUE", "7"),
            ("RUVLLM_PARALLEL", "8"),
            ("RUVLLM_PACK", "b;c"),
            ("RUVLLM_STRICT", "true"),
            ("RUVLLM_LOG_PROMPTS", "0"),
            ("RUVLLM_ALIAS", ""),
            ("RUVLLM_NO_CACHE", "yes"),
            ("RUVLLM_LOG", "debug"),
        ];
        let line = ["ruvllm", "serve", "--parallel", "9"];
        let (log, args) = merged_all(&variables, file, &line).unwrap();
        let limits = &args.server.limits;
        assert_eq!((limits.parallel, limits.queue, limits.max_choices), (9, 7, 4));
        assert_eq!(args.model.kernels.pack, [Path::new("b"), Path::new("c")]);
        assert!(args.model.kernels.strict && !args.server.log_prompts);
        assert_eq!((log, args.server.alias), (Some(args::LogLevel::Debug), Vec::new()));
        // What the file says is excluded by what the environment says, and that by the command line.
        assert!(args.model.kernels.no_cache && args.model.kernels.cache_dir.is_none());
        let args = merged_env(&variables, "", &["--cache-dir", "d"]).unwrap();
        assert_eq!(args.model.kernels.cache_dir.as_deref(), Some(Path::new("d")));
        assert!(!args.model.kernels.no_cache);
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for (name, value, part) in [
            ("RUVLLM_LISTEN", "x", "invalid value"),
            ("RUVLLM_STRICT", "maybe", "true or false"),
            ("RUVLLM_TLS_CERT", "cert.pem", "--tls-key"),
        ] {
            let error = merged_env(&[(name, value)], "", &[]).unwrap_err();
            assert!(error.contains(part), "{name}: {error}");
            assert!(name == "RUVLLM_TLS_CERT" || error.contains(name), "{name}: {error}");
        }
        // What it requires may be in the file.
        let file = "[server]\ntls-key = 'key.pem'";
        assert!(merged_env(&[("RUVLLM_TLS_CERT", "cert.pem")], file, &[]).is_ok());
    }

    #[test]
    fn every_option_has_a_variable_that_means_nothing_else() {
        let command = command();
        let all = command.get_arguments().filter(|arg| !is_help(arg));
        let (with, without): (Vec<_>, Vec<_>) = all.partition(|arg| has_variable(arg));
        let acting: Vec<&str> = without.into_iter().map(name).collect();
        assert_eq!(acting, ["check", "print-config", "new-key"]);
        let mut names: Vec<String> = with.into_iter().map(variable).collect();
        // The first two are read by `ruvllm kernels`; an orchestrator sets the others for a service that is
        // called ruvllm.
        names.extend(
            ["ADMIN_KEY", "ADMIN_URL", "PORT", "SERVICE_HOST", "SERVICE_PORT"]
                .map(|name| format!("{PREFIX}{name}")),
        );
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a variable means two things: {names:?}");
        assert!(names.iter().any(|name| name == "RUVLLM_LISTEN"));
    }

    #[test]
    fn what_acts_alone_is_not_disturbed_by_variables() {
        let line = ["ruvllm", "serve", "--print-config"].map(OsString::from);
        let given = given(&line).unwrap().unwrap();
        let environment = |_: &str| Some(OsString::from("nonsense"));
        assert!(merge(&line, &given, &environment).unwrap().is_none());
        let line = ["ruvllm", "serve", "--print-config", "--strict"].map(OsString::from);
        let given = super::given(&line).unwrap().unwrap();
        let error = check_printed(&given).unwrap_err().to_string();
        assert!(error.contains("--print-config cannot be used with --strict"), "{error}");
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_defaults() {
        let file = "[server]\nlisten = '127.0.0.1:1'\nalias = ['m']\n[limits]\nparallel = 5\nqueue = 6\n[kernels]\nstrict = true\npack = ['a', 'b']\n[model]\nkv = 'q8_0'";
        let args = merged(file, &["--parallel", "7", "--pack=c"]).unwrap();
        assert_eq!(args.server.listen.port(), 1);
        assert_eq!((args.server.limits.parallel, args.server.limits.queue), (7, 6));
        assert_eq!(args.server.limits.max_choices, 128);
        assert!(args.model.kernels.strict);
        assert_eq!(args.model.kernels.pack, [Path::new("c")]);
        assert_eq!(args.model.kv.policy.to_string(), "q8_0");
    }

    #[test]
    fn what_an_option_requires_may_be_in_the_file() {
        let file = "[server]\ntls-key = 'key.pem'";
        let args = merged(file, &["--tls-cert", "cert.pem"]).unwrap();
        assert_eq!(args.server.tls_cert.as_deref(), Some(Path::new("cert.pem")));
        assert_eq!(args.server.tls_key.as_deref(), Some(Path::new("key.pem")));
        let error = merged("", &["--tls-cert", "cert.pem"]).unwrap_err();
        assert!(error.contains("--tls-key"), "{error}");
        let line = ["ruvllm", "serve", "--tls-cert", "c", "--config", "server.toml"];
        let given = given(&line.map(OsString::from)).unwrap().unwrap();
        assert_eq!(given.get_one::<PathBuf>("config").unwrap(), Path::new("server.toml"));
    }

    #[test]
    fn what_is_read_anew_takes_keys_and_files_and_names_what_waits_for_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("server.toml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("[limits]\nqueue = 6\nparallel = 2\n[model]\nkv = 'f16'\n[kernels]\ntrust = 'a'");
        let line = ["ruvllm", "serve", "--parallel", "3", "--config", file.to_str().unwrap()];
        let source = Source::new(line.map(OsString::from).to_vec()).unwrap();
        assert!(source.read().unwrap().1.is_empty());
        write("[limits]\nqueue = 7\nparallel = 5\n[model]\nkv = 'q8_0'\n[kernels]\ntrust = 'b'");
        let (args, restart) = source.read().unwrap();
        assert_eq!(args.model.kernels.trust.as_deref(), Some(Path::new("b")));
        assert_eq!(args.server.limits.parallel, 3);
        assert_eq!(restart, ["kv", "queue"]);
        for (text, part) in [("[limits", "TOML"), ("[limits]\nqueue = -1", "invalid value")] {
            write(text);
            let error = source.read().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("server.toml"), "{error}");
        }
    }

    #[test]
    fn options_of_the_program_stay_beside_those_of_the_file() {
        for line in [["ruvllm", "--log", "debug", "serve"], ["ruvllm", "serve", "--log", "debug"]] {
            let (log, args) = merged_line("[limits]\nqueue = 6", &line).unwrap();
            assert_eq!((log, args.server.limits.queue), (Some(args::LogLevel::Debug), 6));
        }
    }

    #[test]
    fn what_the_command_line_does_not_know_or_take_is_refused() {
        for (file, part) in [
            ("listen = 'x'", "[server]"),
            ("[server]\nlisten = 'x'", "invalid value"),
            ("[server]\nport = 1", "no option `port`"),
            ("[server]\ncheck = true", "no option `check`"),
            ("[nonsense]\na = 1", "no option `a`"),
            ("[kernels]\nstrict = 'yes'", "true or false"),
            ("[kernels]\npack = 'a'", "a list"),
            ("[limits]\nqueue = [1]", "a text or a number"),
            ("[limits]\nqueue = -1", "invalid value"),
            ("[limits", "TOML parse error"),
        ] {
            let error = merged(file, &[]).unwrap_err();
            assert!(error.contains(part), "{file}: {error}");
        }
    }

    #[test]
    fn the_template_names_every_option_with_its_default() {
        let template = template(DeviceClassOption::Server);
        let without = format!("{:?}", merged("", &[]).unwrap());
        assert_eq!(format!("{:?}", merged(&template, &[]).unwrap()), without);
        // Options without a default show an empty text, which is nothing to set them to.
        let set: String = template
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line))
            .filter(|line| !line.ends_with("= \"\""))
            .fold(String::new(), |text, line| text + line + "\n");
        assert_eq!(format!("{:?}", merged(&set, &[]).unwrap()), without, "{set}");
        let command = command();
        for arg in command.get_arguments().filter(|arg| table_of(arg).is_some()) {
            assert!(template.contains(&format!("\n# {} = ", name(arg))), "{}", name(arg));
        }
    }
}
