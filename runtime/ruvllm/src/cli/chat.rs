//! `ruvllm chat`: a conversation over standard input and output.

mod command;
mod input;

use super::args::ChatArgs;
use super::stop::StopFlag;
use super::terminal::note;
use super::{Ended, Failure, setup};
use command::{COMMANDS, Command};
use input::{Entry, Input};
use ruvllm::{Conversation, GenerateOptions, Message, Runtime};
use std::ops::ControlFlow;
use std::path::Path;

/// The role of a message that says how to answer.
const SYSTEM: &str = "system";

pub(crate) fn main(args: &ChatArgs) -> Result<Ended, Failure> {
    let stop = StopFlag::install()?;
    stop.announce("stopping; Ctrl-C again ends the program at once");
    let loaded = setup::endless(&args.model, args.endless.sinks);
    let Some(runtime) = stop.loaded(loaded)? else { return Ok(Ended::Interrupted) };
    let mut chat = Chat::new(&runtime, args, stop)?;
    if chat.stop.is_set() {
        return Ok(Ended::Interrupted);
    }
    let keeps = if args.no_history { None } else { setup::state_dir(&args.model.kernels) };
    let mut input = Input::open(keeps.map(|dir| dir.join("chat-history")))?;
    let attended = input.is_terminal();
    if attended {
        note!(
            "{}; /help lists the commands, and Ctrl-D ends the conversation",
            runtime.model_name()
        );
    }
    let mut interrupted = false;
    loop {
        // What comes once the line is there is about its answer, even if that has not begun.
        chat.stop.clear();
        let taken = match input.next()? {
            Entry::Line(line) => chat.take(&line),
            Entry::Message(text) => chat.answer(&text).map(ControlFlow::Continue),
            Entry::End => break,
            Entry::Interrupted if interrupted => return Ok(Ended::Interrupted),
            Entry::Interrupted => {
                note!("Ctrl-C again ends the conversation, and so do Ctrl-D and /quit");
                interrupted = true;
                continue;
            }
        };
        interrupted = false;
        match taken {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            // Somebody who reads it can do something about it.
            Err(failure) if attended => note!("error: {failure}"),
            Err(failure) => return Err(failure),
        }
    }
    Ok(Ended::Done)
}

struct Chat<'r> {
    runtime: &'r Runtime,
    conversation: Conversation,
    options: GenerateOptions,
    stop: StopFlag,
}

impl<'r> Chat<'r> {
    fn new(runtime: &'r Runtime, args: &ChatArgs, stop: StopFlag) -> Result<Self, Failure> {
        let options = GenerateOptions {
            max_tokens: args.tokens,
            sampling: setup::sampling(&args.sampling),
            stop: args.sampling.stop.clone(),
            ..GenerateOptions::default()
        };
        let mut chat = Self { runtime, conversation: runtime.conversation(), options, stop };
        // Refused before the first line is read, not after it.
        let system = args.system.as_deref().map(|text| Message::new(SYSTEM, text));
        chat.begin_with(system.into_iter().collect())?;
        Ok(chat)
    }

    /// Does what a line says, or answers it; breaks at the end of the conversation.
    fn take(&mut self, line: &str) -> Result<ControlFlow<()>, Failure> {
        match command::parse(line)? {
            None => self.answer(line)?,
            Some(Command::Help) => help(),
            Some(Command::Clear) => {
                self.conversation.set_messages(self.system().into_iter().cloned().collect());
                note!("the messages are forgotten");
            }
            Some(Command::System(None)) => match self.system() {
                Some(message) => note!("{}", message.content),
                None => note!("there is no system message"),
            },
            Some(Command::System(Some(text))) => {
                let others = self.conversation.messages().iter().skip(self.system().iter().len());
                let system = Message::new(SYSTEM, text);
                self.begin_with([system].into_iter().chain(others.cloned()).collect())?;
            }
            Some(Command::Save(path)) => self.save(&path)?,
            Some(Command::Load(path)) => self.load(&path)?,
            Some(Command::Quit) => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn answer(&mut self, message: &str) -> Result<(), Failure> {
        let stop = &self.stop;
        let emit = |piece: &str| stop.write(piece, setup::emit);
        let answer = self.conversation.send(message, &self.options, emit);
        let _ = setup::emit("\n");
        setup::report_incidents(self.runtime);
        answer?;
        Ok(())
    }

    /// The message that says how to answer.
    fn system(&self) -> Option<&Message> {
        self.conversation.messages().first().filter(|message| message.role == SYSTEM)
    }

    /// Goes on with these messages, if the model's template takes them before one of the user's.
    fn begin_with(&mut self, messages: Vec<Message>) -> Result<(), Failure> {
        let mut next = messages.clone();
        next.push(Message::new("user", ""));
        self.runtime.render(&next)?;
        self.conversation.set_messages(messages);
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<(), Failure> {
        let messages = self.conversation.messages();
        let text = serde_json::to_string_pretty(messages)? + "\n";
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        note!("{} messages are in {}", messages.len(), path.display());
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), Failure> {
        let text = setup::read_text_file(path)?;
        let messages: Vec<Message> = serde_json::from_str(&text).map_err(|error| {
            format!("{} holds no messages as /save writes them: {error}", path.display())
        })?;
        let count = messages.len();
        self.begin_with(messages)?;
        note!("the conversation goes on after {count} messages of {}", path.display());
        Ok(())
    }
}

fn help() {
    for (usage, what) in COMMANDS {
        note!("{usage:<16}{what}");
    }
    note!(
        "A message of several lines stands between \"\"\" and \"\"\", or its lines end with a backslash.\n\
         Ctrl-C stops an answer."
    );
}
