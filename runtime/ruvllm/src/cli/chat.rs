//! `ruvllm chat`: a conversation over standard input and output.

use super::args::ChatArgs;
use super::stop::StopFlag;
use super::terminal::{self, note};
use super::{Ended, Failure, setup};
use ruvllm::{GenerateOptions, Message};
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

pub(crate) fn main(args: &ChatArgs) -> Result<Ended, Failure> {
    let stop = StopFlag::install()?;
    let runtime = setup::endless(&args.model, args.endless)?;
    // Refused before the first line is read, not after it.
    runtime.render(&[Message::new("user", "")])?;
    let options = GenerateOptions {
        max_tokens: args.tokens,
        sampling: setup::sampling(&args.sampling),
        stop: args.sampling.stop.clone(),
        ..GenerateOptions::default()
    };
    let mut conversation = runtime.conversation();
    if let Some(system) = &args.system {
        conversation.push(Message::new("system", system.as_str()));
    }
    let interactive = io::stdin().is_terminal();
    if interactive {
        note!("{}; an empty line or Ctrl-D ends the conversation", runtime.model_name());
    }
    let mut lines = io::stdin().lock().lines();
    loop {
        if interactive {
            terminal::beginning("> ");
            io::stderr().flush()?;
        }
        let Some(line) = lines.next().transpose()? else { break };
        if line.trim().is_empty() {
            break;
        }
        stop.clear();
        let answer = conversation.send(&line, &options, |piece| match setup::emit(piece) {
            std::ops::ControlFlow::Continue(()) => stop.flow(),
            gone => gone,
        });
        let _ = setup::emit("\n");
        setup::report_incidents(&runtime);
        answer?;
    }
    Ok(Ended::Done)
}
