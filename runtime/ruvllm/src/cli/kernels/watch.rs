//! Following what happens to a live server's kernels.

use super::args::Live;
use super::client::{Client, ClientError};
use super::live::{Entry, Window};
use crate::cli::stop::StopFlag;
use crate::cli::terminal::{escape_json, note};
use crate::cli::{Ended, Failure, setup};
use ruvllm::signing::escape_untrusted;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How often the server is asked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often a window is shown of which there is nothing new.
const REPEAT: Duration = Duration::from_secs(10);

/// Entries that are shown of what was before.
const BEFORE: usize = 10;

pub(super) fn main(live: &Live) -> Result<Ended, Failure> {
    let client = Client::of(live)?;
    let stop = StopFlag::install()?;
    let mut watch = Watch { client, json: live.json, last: None, shown: BTreeMap::new() };
    let mut lost = false;
    loop {
        match watch.look() {
            Ok(ControlFlow::Continue(())) => lost = false,
            // Nobody reads any more.
            Ok(ControlFlow::Break(())) => return Ok(Ended::Done),
            // It may be starting again.
            Err(error @ ClientError::Unreachable { .. }) if watch.last.is_some() => {
                if !lost {
                    note!("warning: {error}; asking on");
                }
                lost = true;
            }
            Err(error) => return Err(error.into()),
        }
        if stop.wait_for(PERIOD) {
            return Ok(Ended::Interrupted);
        }
    }
}

struct Watch {
    client: Client,
    json: bool,
    /// The number of the newest entry that was shown; `None` before the first look.
    last: Option<u64>,
    /// When each generation's window was shown last, and what had gone wrong by then.
    shown: BTreeMap<u64, (Instant, [u64; 4])>,
}

impl Watch {
    /// Prints what is new. Breaks where nobody reads it.
    fn look(&mut self) -> Result<ControlFlow<()>, ClientError> {
        let (limit, after) = match self.last {
            None => (BEFORE, 0),
            // As many as a second can bring.
            Some(last) => (1000, last),
        };
        let query = [("limit", &*limit.to_string()), ("after", &*after.to_string())];
        let answer = self.client.get("history", &query)?;
        let mut last = after;
        for raw in list(&answer, "entries").iter().rev() {
            let entry: Entry = self.client.read(raw.clone())?;
            last = last.max(entry.number);
            if self.print("entry", raw, &entry.line()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.last = Some(last);
        let answer = self.client.get("kernels", &[])?;
        let mut open = Vec::new();
        for raw in list(&answer, "health") {
            let window: Window = self.client.read(raw.clone())?;
            open.push(window.generation);
            if self.is_due(&window) && self.print("window", raw, &window.status()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.shown.retain(|generation, _| open.contains(generation));
        Ok(ControlFlow::Continue(()))
    }

    /// Whether a window is to be shown: for the first time, with something new, or again.
    fn is_due(&mut self, window: &Window) -> bool {
        let vitals = &window.vitals;
        let wrong = [vitals.traps, vitals.deadlines, vitals.wrong_numbers, vitals.quarantines];
        let shown = self.shown.get(&window.generation);
        let due = shown.is_none_or(|(at, before)| *before != wrong || at.elapsed() >= REPEAT);
        if due {
            self.shown.insert(window.generation, (Instant::now(), wrong));
        }
        due
    }

    fn print(&self, kind: &str, raw: &Value, line: &str) -> ControlFlow<()> {
        let line = match self.json {
            true => escape_json(&json!({ kind: raw }).to_string()),
            false => escape_untrusted(line),
        };
        setup::emit(&(line + "\n"))
    }
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}
