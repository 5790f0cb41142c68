//! Requests that share an engine: what each is told, who waits for whom, and what happens where room
//! is short.
#![allow(missing_docs)]

mod common;

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::quantized::GgmlDType;
use common::{Fixture, LLAMA, Sizes, engine, some_tokens, two_threads};
use ruvllm_engine::scheduler::{
    Finished, Rejected, Request, Scheduler, SchedulerConfig, SchedulerStats, Sink, Ticket, Token,
    Update,
};
use ruvllm_engine::{
    Engine, EngineConfig, Event, FinishReason, GenerateOptions, Model, SamplingOptions,
    SessionOptions,
};

/// A model of 1 KiB of f16 keys and values a token.
fn model() -> Arc<Model> {
    Fixture::new(&Sizes { context: 4096, ..LLAMA }, GgmlDType::F32).model()
}

fn start(engine: &Engine, config: SchedulerConfig) -> Scheduler {
    Scheduler::start(engine.clone(), config).unwrap()
}

fn default_scheduler() -> Scheduler {
    start(&engine(&model(), two_threads()), SchedulerConfig::default())
}

/// Texts that differ from their first token on.
fn text(number: u32, tokens: usize) -> Vec<u32> {
    some_tokens(tokens).into_iter().map(|token| 3 + (token + 31 * number) % 280).collect()
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    let sampling = SamplingOptions::greedy();
    GenerateOptions { max_tokens, sampling, ignore_eos: true, ..GenerateOptions::default() }
}

fn request(number: u32, prompt: usize, tokens: usize) -> Request {
    Request::new(text(number, prompt), greedy(tokens))
}

/// What a request was told, with the time of each update.
struct Answer {
    updates: Receiver<(Instant, Update)>,
    ticket: Option<Ticket>,
}

fn sink() -> (Sink, Receiver<(Instant, Update)>) {
    let (sender, receiver) = channel();
    let sink = move |update| match sender.send((Instant::now(), update)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    (Box::new(sink), receiver)
}

fn ask(scheduler: &Scheduler, request: Request) -> Answer {
    let (sink, updates) = sink();
    Answer { updates, ticket: Some(scheduler.submit(request, sink).unwrap()) }
}

/// How long anything here may take.
const LONG: Duration = Duration::from_secs(120);

impl Answer {
    fn next(&self) -> Update {
        self.updates.recv_timeout(LONG).expect("no update").1
    }

    /// The tokens with their text, and the end.
    fn all(self) -> (Vec<Token>, Finished) {
        let mut tokens = Vec::new();
        loop {
            match self.next() {
                Update::Started(_) => {}
                Update::Token(token) => tokens.push(token),
                Update::Done(finished) => return (tokens, finished),
                other => panic!("{other:?}"),
            }
        }
    }

    fn tokens(self) -> Vec<u32> {
        self.all().0.into_iter().map(|token| token.token).collect()
    }
}

/// The tokens and the text of a request that has an engine for itself.
fn alone(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> (Vec<u32>, String) {
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

/// Waits until the figures are as they should be.
fn until(scheduler: &Scheduler, what: &str, is: impl Fn(&SchedulerStats) -> bool) {
    let start = Instant::now();
    while !is(&scheduler.stats()) {
        assert!(start.elapsed() < LONG, "{what}: {:?}", scheduler.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_request_gets_its_text_and_how_it_ended() {
    let scheduler = default_scheduler();
    let (prompt, options) = (text(0, 40), greedy(12));
    let expected = alone(scheduler.engine(), &prompt, &options);
    let answer = ask(&scheduler, Request::new(prompt, options));
    assert!(matches!(answer.next(), Update::Started(started) if started.cached_tokens == 0));
    let (tokens, finished) = answer.all();
    let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
    let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
    assert_eq!((ids, text + &finished.text), expected);
    assert_eq!(finished.reason, FinishReason::MaxTokens);
    assert_eq!((finished.usage.prompt_tokens, finished.usage.completion_tokens), (40, 12));
    let latency = finished.latency;
    assert!(latency.queued <= latency.first_token && latency.first_token <= latency.total);
    assert!(scheduler.drain(LONG));
    let stats = scheduler.stats();
    assert_eq!((stats.finished, stats.running, stats.waiting), (1, 0, 0));
    assert_eq!((stats.prompt_tokens, stats.generated_tokens, stats.steps), (40, 12, 12));
}

#[test]
fn requests_that_join_and_leave_at_random_read_as_they_do_alone() {
    let scheduler = start(
        &engine(&model(), two_threads()),
        SchedulerConfig { running: 6, chunk: 48, ..SchedulerConfig::default() },
    );
    let sizes = |i: u32| (1 + (i * 37) as usize % 150, 1 + (i * 11) as usize % 30);
    let answers: Vec<Answer> = (0..24)
        .map(|i| {
            std::thread::sleep(Duration::from_millis(u64::from(i * 7 % 5)));
            let (prompt, tokens) = sizes(i);
            ask(&scheduler, request(i, prompt, tokens))
        })
        .collect();
    for (i, answer) in (0..).zip(answers) {
        let (prompt, tokens) = sizes(i);
        let expected = alone(scheduler.engine(), &text(i, prompt), &greedy(tokens)).0;
        assert_eq!(answer.tokens(), expected, "request {i}");
    }
}

#[test]
fn two_hundred_texts_at_once_come_to_their_end() {
    let config = SchedulerConfig { running: 200, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), two_threads()), config);
    let answers: Vec<Answer> = (0..200).map(|i| ask(&scheduler, request(i, 20, 16))).collect();
    for answer in answers {
        let (tokens, finished) = answer.all();
        assert_eq!((tokens.len(), finished.reason), (16, FinishReason::MaxTokens));
    }
    assert!(scheduler.drain(LONG));
    assert_eq!((scheduler.stats().finished, scheduler.stats().failed), (200, 0));
}

#[test]
fn a_cancelled_request_ends_and_its_blocks_are_free() {
    let scheduler = default_scheduler();
    let alone = SessionOptions { scope: None, ..SessionOptions::default() };
    let endless = |i| Request { session: alone.clone(), ..request(i, 100, 3000) };
    // By its ticket.
    let mut answer = ask(&scheduler, endless(0));
    while !matches!(answer.next(), Update::Token(_)) {}
    assert!(scheduler.engine().memory().kv.blocks > 0);
    drop(answer.ticket.take());
    let (_, finished) = answer.all();
    assert_eq!(finished.reason, FinishReason::Cancelled);
    assert_eq!(scheduler.engine().memory().kv.blocks, 0);
    // By its sink, which is told nothing more.
    let told = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&told);
    let sink = Box::new(move |_| {
        *counter.lock().unwrap() += 1;
        if *counter.lock().unwrap() == 4 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let _ticket = scheduler.submit(endless(1), sink).unwrap();
    until(&scheduler, "cancelled", |stats| stats.cancelled == 2);
    assert_eq!((*told.lock().unwrap(), scheduler.engine().memory().kv.blocks), (4, 0));
}

#[test]
fn a_full_queue_rejects_and_says_when_to_come_back() {
    let config = SchedulerConfig { running: 1, queue: 2, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), two_threads()), config);
    let first = ask(&scheduler, request(0, 10, 3000));
    until(&scheduler, "it runs", |stats| stats.running == 1);
    let waiting = [1, 2].map(|i| ask(&scheduler, request(i, 10, 5)));
    match scheduler.submit(request(3, 10, 5), sink().0) {
        Err(Rejected::QueueFull { retry_after }) => assert!(retry_after >= Duration::from_secs(1)),
        other => panic!("{other:?}"),
    }
    assert_eq!((scheduler.stats().rejected, scheduler.stats().waiting), (1, 2));
    // Who is gone before it began makes a place.
    drop(waiting);
    until(&scheduler, "there is a place", |stats| stats.waiting == 0);
    let last = ask(&scheduler, request(3, 10, 5));
    drop(first);
    assert_eq!(last.tokens().len(), 5);
}

#[test]
fn draining_ends_what_runs_and_takes_nothing_more() {
    let scheduler = default_scheduler();
    let answers: Vec<Answer> = (0..5).map(|i| ask(&scheduler, request(i, 30, 200))).collect();
    assert!(!scheduler.drain(Duration::from_millis(1)));
    assert!(matches!(scheduler.submit(request(9, 5, 5), sink().0), Err(Rejected::Draining)));
    assert!(scheduler.drain(LONG));
    for answer in answers {
        assert_eq!(answer.tokens().len(), 200);
    }
}

#[test]
fn the_last_handle_cancels_what_runs() {
    let scheduler = default_scheduler();
    let answer = ask(&scheduler, request(0, 10, 4000));
    while !matches!(answer.next(), Update::Token(_)) {}
    drop(scheduler);
    assert_eq!(answer.all().1.reason, FinishReason::Cancelled);
}

#[test]
fn what_can_never_be_computed_is_refused_at_once() {
    let config = EngineConfig { ctx: Some(64), ..two_threads() };
    let scheduler = start(&engine(&model(), config), SchedulerConfig::default());
    let refusal = |request| match scheduler.submit(request, sink().0) {
        Err(Rejected::Invalid(error)) => error.code(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(request(0, 0, 5)), "prompt_empty");
    assert_eq!(refusal(request(0, 65, 5)), "prompt_too_long");
    assert_eq!(refusal(Request::new(vec![99_999], greedy(5))), "token_out_of_range");
    let sampling = SamplingOptions { temperature: -1.0, ..SamplingOptions::default() };
    let options = GenerateOptions { sampling, ..greedy(5) };
    assert_eq!(refusal(Request::new(vec![5], options)), "invalid_option");
    for config in [
        SchedulerConfig { running: 0, ..SchedulerConfig::default() },
        SchedulerConfig { queue: 0, ..SchedulerConfig::default() },
        SchedulerConfig { chunk: 0, ..SchedulerConfig::default() },
    ] {
        let refused = Scheduler::start(scheduler.engine().clone(), config).err().unwrap();
        assert_eq!(refused.code(), "invalid_option");
    }
    // As with a session of one's own, the context may end a text.
    let (tokens, finished) = ask(&scheduler, request(0, 60, 100)).all();
    assert_eq!((tokens.len(), finished.reason), (5, FinishReason::ContextFull));
}
