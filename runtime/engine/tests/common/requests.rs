//! Requests to a scheduler, and prompts whose texts are certain.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ruvllm_engine::scheduler::{Finished, Request, RequestHandle, Scheduler, Sink, Token, Update};
use ruvllm_engine::{Engine, Event, GenerateOptions, Model, SamplingOptions, SessionOptions};

use super::repository;

pub fn greedy(max_tokens: usize) -> GenerateOptions {
    let sampling = SamplingOptions::greedy();
    GenerateOptions { max_tokens, sampling, ignore_eos: true, ..GenerateOptions::default() }
}

/// What a request was told, with the time of each update.
pub struct Answer {
    pub updates: Receiver<(Instant, Update)>,
    pub handle: Option<RequestHandle>,
}

pub fn sink() -> (Sink, Receiver<(Instant, Update)>) {
    let (sender, receiver) = channel();
    let sink = move |update| match sender.send((Instant::now(), update)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    (Box::new(sink), receiver)
}

pub fn ask(scheduler: &Scheduler, request: Request) -> Answer {
    let (sink, updates) = sink();
    Answer { updates, handle: Some(scheduler.submit(request, sink).unwrap()) }
}

/// A request that holds the scheduler up, and with it all requests, behind its first update of a kind, until the sender that
/// is returned is dropped: what a test submits meanwhile is there in time, however late the test's thread is.
pub fn ask_and_hold(
    scheduler: &Scheduler,
    request: Request,
    holds: fn(&Update) -> bool,
) -> (Answer, Sender<()>) {
    let (release, released) = channel();
    let mut released = Some(released);
    let (mut tell, updates) = sink();
    let sink = move |update| {
        let released = released.take_if(|_| holds(&update));
        let flow = tell(update);
        if let Some(released) = released {
            let _ = released.recv();
        }
        flow
    };
    let handle = Some(scheduler.submit(request, Box::new(sink)).unwrap());
    (Answer { updates, handle }, release)
}

/// How long anything here may take.
pub const LONG: Duration = Duration::from_secs(120);

impl Answer {
    pub fn next(&self) -> Update {
        self.updates.recv_timeout(LONG).expect("no update").1
    }

    /// The tokens with their text, and the end.
    pub fn all(self) -> (Vec<Token>, Finished) {
        let mut tokens = Vec::new();
        loop {
            match self.next() {
                Update::Started(_) | Update::Prefill { .. } => {}
                Update::Token(token) => tokens.push(token),
                Update::Done(finished) => return (tokens, finished),
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn tokens(self) -> Vec<u32> {
        self.all().0.into_iter().map(|token| token.token).collect()
    }
}

/// The tokens and the text of a request that has an engine for itself.
pub fn alone(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> (Vec<u32>, String) {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    let options_of_session = SessionOptions { scope: None, ..SessionOptions::default() };
    let mut session = engine.session_with(&options_of_session);
    let on_event = &mut |event| {
        match event {
            Event::Token(token) => tokens.push(token),
            Event::Text(piece) => text.push_str(&piece),
            _ => {}
        }
        ControlFlow::Continue(())
    };
    session.generate(prompt, options, on_event).unwrap();
    (tokens, text)
}

/// The demo model, and beginnings of texts in which it is sure of every word: of each text `count`,
/// from 5 tokens on, each `step` longer than the one before.
pub fn tales(count: usize, step: usize) -> (Arc<Model>, Vec<Vec<u32>>) {
    let path = repository().join("runtime/ruvllm/demo/tales-q8_0.gguf");
    let model = Arc::new(Model::open(&path).unwrap());
    let cases = std::fs::read(repository().join("tests/fixtures/parity/greedy.json")).unwrap();
    let cases: serde_json::Value = serde_json::from_slice(&cases).unwrap();
    let mut prompts = Vec::new();
    for case in cases["cases"].as_array().unwrap().iter().filter(|case| case["format"] == "Q8_0") {
        let text = [&case["prompt"], &case["text"]].map(|text| text.as_str().unwrap()).concat();
        let tokens = model.tokenizer().encode(&text, true).unwrap();
        prompts.extend((0..count).map(|i| tokens[..5 + step * i].to_vec()));
    }
    (model, prompts)
}
