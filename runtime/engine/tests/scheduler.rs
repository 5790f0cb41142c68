//! Requests that share an engine: what each is told, who waits for whom, and what happens where room
//! is short.
#![allow(missing_docs)]

mod common;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::requests::{Answer, LONG, alone, ask, ask_and_hold, greedy, sink, tales};
use common::{Fixture, LLAMA, QWEN2, Sizes, engine, relative_error, some_tokens, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::memory::PAGE;
use ruvllm_engine::scheduler::{
    Finished, Kind, Rejected, Request, RequestHandle, Scheduler, SchedulerConfig, SchedulerStats,
    Update,
};
use ruvllm_engine::{
    Engine, EngineConfig, FinishReason, GenerateOptions, Logprobs, Model, SamplingOptions,
    SessionOptions, TokenConstraint, TokenMask, Use,
};
use ruvllm_host::{Host, HostConfig};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, Tensor};

/// A model of 1 KiB of f16 keys and values a token.
fn model() -> Arc<Model> {
    Fixture::new(&Sizes { context: 4096, ..LLAMA }, DType::F32).model()
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

fn request(number: u32, prompt: usize, tokens: usize) -> Request {
    Request::new(text(number, prompt), greedy(tokens))
}

/// Holds a greedy text against the model: each token is the likeliest of all behind those before it, or
/// as likely but for rounding, which depends on what else is in a step.
fn assert_greedy(engine: &Engine, prompt: &[u32], tokens: &[u32], what: &str) {
    let session = SessionOptions { scope: None, ..SessionOptions::default() };
    let all = [prompt, tokens].concat();
    let mut checked = 0;
    let each = &mut |index: usize, logits: &[f32]| {
        let Some(&token) = tokens.get(index + 1 - prompt.len()) else { return };
        // End tokens were banned.
        let best =
            (0..logits.len()).filter(|&t| t != 2).map(|t| logits[t]).fold(f32::MIN, f32::max);
        let short = (best - logits[token as usize]) / best.abs();
        assert!(
            short < 2e-3,
            "{what}: token {} falls short by {short:e}",
            index + 1 - prompt.len()
        );
        checked += 1;
    };
    engine.session_with(&session).evaluate(&all, prompt.len() - 1, each).unwrap();
    assert_eq!(checked, tokens.len(), "{what}");
}

fn is_token(update: &Update) -> bool {
    matches!(update, Update::Token(_))
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
    assert!(matches!(answer.next(), Update::Prefill { done: 40, total: 40 }));
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
fn a_text_ends_before_a_stop_string_and_may_have_no_token_at_all() {
    let scheduler = default_scheduler();
    let whole = alone(scheduler.engine(), &text(0, 40), &greedy(60)).1;
    let chars: Vec<(usize, char)> = whole.char_indices().collect();
    assert!(chars.len() > 8, "too little text to stop in: {whole:?}");
    let stop = whole[chars[chars.len() / 2].0..chars[chars.len() / 2 + 2].0].to_owned();
    let options = GenerateOptions { stop: vec![stop.clone()], ..greedy(60) };
    let (tokens, finished) = ask(&scheduler, Request::new(text(0, 40), options)).all();
    let read: String = tokens.iter().map(|token| token.text.as_str()).collect();
    assert_eq!((read + &finished.text).as_str(), &whole[..whole.find(&stop).unwrap()]);
    assert_eq!(finished.reason, FinishReason::StopString);
    let (tokens, finished) = ask(&scheduler, request(0, 40, 0)).all();
    assert_eq!((tokens.len(), finished.reason), (0, FinishReason::MaxTokens));
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
    for (i, mut answer) in (0..).zip(answers) {
        let (prompt, tokens) = sizes(i);
        if i % 5 == 4 {
            drop(answer.handle.take());
            let (read, finished) = answer.all();
            assert!(finished.reason == FinishReason::Cancelled || read.len() == tokens);
            continue;
        }
        let read = answer.tokens();
        assert_eq!(read.len(), tokens);
        assert_greedy(scheduler.engine(), &text(i, prompt), &read, &format!("request {i}"));
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
    // By its handle.
    let mut answer = ask(&scheduler, endless(0));
    while !is_token(&answer.next()) {}
    assert!(scheduler.engine().memory().kv.blocks > 0);
    drop(answer.handle.take());
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
    let _handle = scheduler.submit(endless(1), sink).unwrap();
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
    // Much more than what can be done while this thread waits for its turn.
    let answers: Vec<Answer> = (0..20).map(|i| ask(&scheduler, request(i, 30, 400))).collect();
    assert!(!scheduler.drain(Duration::from_millis(1)));
    assert!(matches!(scheduler.submit(request(9, 5, 5), sink().0), Err(Rejected::Draining)));
    assert!(scheduler.drain(LONG));
    for answer in answers {
        assert_eq!(answer.tokens().len(), 400);
    }
}

#[test]
fn the_last_handle_cancels_what_runs() {
    let scheduler = default_scheduler();
    let answer = ask(&scheduler, request(0, 10, 4000));
    while !is_token(&answer.next()) {}
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

#[test]
fn a_long_prompt_holds_up_a_text_for_no_longer_than_a_chunk() {
    let model = Fixture::new(&Sizes { context: 9000, ..LLAMA }, DType::F32).model();
    let config = SchedulerConfig { chunk: 128, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model, two_threads()), config);
    let running = ask(&scheduler, request(0, 10, 8000));
    while !is_token(&running.next()) {}
    let before = scheduler.stats();
    let long = ask(&scheduler, request(1, 8192, 2));
    // When it began, and not when this thread is told, which may be chunks later.
    let started = match long.updates.recv_timeout(LONG) {
        Ok((at, Update::Started(_))) => at,
        other => panic!("{other:?}"),
    };
    let mut widest = 0;
    let first = loop {
        widest = widest.max(scheduler.stats().batch_tokens);
        match long.updates.recv_timeout(Duration::from_micros(100)) {
            Ok((at, Update::Token(_))) => break at,
            Ok((_, Update::Prefill { .. })) => {}
            Ok((_, other)) => panic!("{other:?}"),
            Err(_) => assert!(started.elapsed() < LONG),
        }
    };
    let after = scheduler.stats();
    assert!(after.steps - before.steps >= 64, "{before:?} {after:?}");
    assert!(widest <= 129, "a step of {widest} tokens");
    // A token with every chunk.
    let beside = running
        .updates
        .try_iter()
        .filter(|(at, update)| (started..first).contains(at) && matches!(update, Update::Token(_)));
    let beside = beside.count();
    assert!(beside >= 63, "{beside} tokens beside a prompt of 64 chunks");
}

#[test]
fn a_higher_priority_comes_first_and_who_made_way_goes_on() {
    let config = SchedulerConfig { running: 1, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), two_threads()), config);
    let with = |priority, request: Request| Request {
        session: SessionOptions { priority, ..SessionOptions::default() },
        ..request
    };
    let (low, release) = ask_and_hold(&scheduler, with(1, request(0, 50, 600)), is_token);
    while !is_token(&low.next()) {}
    let lowest = ask(&scheduler, with(0, request(1, 50, 5)));
    let high = ask(&scheduler, with(2, request(2, 50, 5)));
    let higher = ask(&scheduler, with(3, request(3, 50, 5)));
    drop(release);
    let end = |answer: Answer| answer.updates.iter().map(|(at, _)| at).last().unwrap();
    let order = [higher, high, low, lowest].map(end);
    assert!(order.is_sorted(), "{order:?}");
    assert!(scheduler.drain(LONG) && scheduler.is_alive());
    let stats = scheduler.stats();
    let counts = (stats.preempted_for_priority, stats.finished, stats.recomputed_tokens);
    assert_eq!(counts, (1, 4, 0), "{stats:?}");
}

/// A request of a client.
fn of_client(client: &str, number: u32, prompt: usize, tokens: usize) -> Request {
    Request { client: client.into(), ..request(number, prompt, tokens) }
}

/// Submits requests of clients, and notes whose begins.
fn submitter(
    scheduler: &Scheduler,
    begun: &Arc<Mutex<Vec<&'static str>>>,
) -> impl FnMut(&'static str, u32, usize, usize) -> RequestHandle {
    move |client, number, prompt, tokens| {
        let begun = Arc::clone(begun);
        let sink = Box::new(move |update| {
            if let Update::Started(_) = update {
                begun.lock().unwrap().push(client);
            }
            ControlFlow::Continue(())
        });
        scheduler.submit(of_client(client, number, prompt, tokens), sink).unwrap()
    }
}

#[test]
fn clients_are_served_alike_whatever_they_ask_for() {
    let config = SchedulerConfig { running: 2, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), two_threads()), config);
    let begun = Arc::new(Mutex::new(Vec::new()));
    let mut submit = submitter(&scheduler, &begun);
    // One asks for much, the other later and for less at a time.
    let cost = |client: &str| if client == "many" { 60 + 2 * 30 } else { 20 + 2 * 10 };
    let (runs, release) = ask_and_hold(&scheduler, of_client("many", 0, 60, 30), is_token);
    let mut handles: Vec<RequestHandle> = (1..20).map(|i| submit("many", i, 60, 30)).collect();
    while !is_token(&runs.next()) {}
    handles.extend((0..30).map(|i| submit("few", 100 + i, 20, 10)));
    drop(release);
    assert!(scheduler.drain(LONG));
    let begun = begun.lock().unwrap();
    // All but the one that held the scheduler up.
    assert_eq!(begun.len(), 49);
    // From when both wait until one has nothing left to wait.
    let first = begun.iter().position(|client| *client == "few").unwrap();
    let last = |name| begun.iter().rposition(|client| *client == name).unwrap();
    let (mut many, mut few) = (0i64, 0i64);
    for client in &begun[first..last("many").min(last("few"))] {
        *(if *client == "many" { &mut many } else { &mut few }) += cost(client);
        assert!((many - few).abs() <= 2 * 2 * cost("many"), "{many} and {few}: {begun:?}");
    }
    assert!(few > 10 * cost("few"));
}

#[test]
fn who_was_away_has_saved_nothing_up() {
    let config = SchedulerConfig { running: 2, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), two_threads()), config);
    let begun = Arc::new(Mutex::new(Vec::new()));
    let mut submit = submitter(&scheduler, &begun);
    let is_done = |update: &Update| matches!(update, Update::Done(_));
    let mut handles: Vec<RequestHandle> = (0..14).map(|i| submit("here", i, 60, 30)).collect();
    let (much, release) = ask_and_hold(&scheduler, of_client("here", 14, 60, 30), is_done);
    handles.extend((15..40).map(|i| submit("here", i, 60, 30)));
    while !is_done(&much.next()) {}
    handles.extend((0..20).map(|i| submit("away", 100 + i, 60, 30)));
    drop(release);
    assert!(scheduler.drain(LONG));
    let begun = begun.lock().unwrap();
    let first = begun.iter().position(|client| *client == "away").unwrap();
    let next = &begun[first..first + 10];
    let away = next.iter().filter(|client| **client == "away").count();
    assert!((3..=7).contains(&away), "{next:?}");
}

/// Room for some eleven thousand tokens.
fn tight(spill: Option<&std::path::Path>) -> EngineConfig {
    EngineConfig {
        memory: Some(6 * PAGE),
        ctx: Some(1500),
        batch: 64,
        spill_dir: spill.map(Into::into),
        ..two_threads()
    }
}

#[test]
fn texts_that_do_not_fit_together_take_turns_and_read_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let model = model();
    let roomy = engine(&model, two_threads());
    for spill in [None, Some(dir.path())] {
        let scheduler = start(&engine(&model, tight(spill)), SchedulerConfig::default());
        let answers: Vec<Answer> = (0..20).map(|i| ask(&scheduler, request(i, 200, 450))).collect();
        for (i, answer) in (0..).zip(answers) {
            let tokens = answer.tokens();
            assert_eq!(tokens.len(), 450);
            assert_greedy(&roomy, &text(i, 200), &tokens, &format!("request {i}"));
        }
        let (stats, memory) = (scheduler.stats(), scheduler.engine().memory());
        println!("{stats:?}\n{:?}", memory.kv);
        assert!(stats.preempted_for_memory > 0, "{stats:?}");
        assert_eq!(stats.recomputed_tokens > 0, spill.is_none(), "{stats:?}");
        assert_eq!(memory.kv.restores > 0, spill.is_some(), "{:?}", memory.kv);
    }
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_and_one_that_may_waits() {
    let scheduler = start(&engine(&model(), tight(None)), SchedulerConfig::default());
    let weights =
        scheduler.engine().reserve(Use::Adapter, "pirate", 1, 5 * PAGE + PAGE / 4).unwrap();
    match scheduler.submit(request(0, 1490, 5), sink().0) {
        Err(Rejected::Invalid(error)) => {
            assert!(error.to_string().contains("by pirate"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    drop(weights);
    // Together more than there is, each alone well within.
    let answers: Vec<Answer> = (0..12).map(|i| ask(&scheduler, request(i, 1400, 20))).collect();
    for answer in answers {
        assert_eq!(answer.tokens().len(), 20);
    }
    assert_eq!(scheduler.stats().failed, 0);
}

#[test]
fn a_full_memory_makes_way_for_a_higher_priority() {
    let scheduler = start(&engine(&model(), tight(None)), SchedulerConfig::default());
    let low: Vec<Answer> = (0..8).map(|i| ask(&scheduler, request(i, 1400, 90))).collect();
    until(&scheduler, "the memory is full", |stats| stats.generated_tokens > 20);
    let session = SessionOptions { priority: 9, ..SessionOptions::default() };
    let high = ask(&scheduler, Request { session, ..request(50, 1400, 5) });
    let end = |answer: Answer| answer.updates.iter().map(|(at, _)| at).last().unwrap();
    let high = end(high);
    assert!(low.into_iter().all(|answer| end(answer) > high));
    assert!(scheduler.drain(LONG));
    let stats = scheduler.stats();
    assert!(stats.preempted_for_priority > 0, "{stats:?}");
    assert_eq!((stats.finished, stats.failed), (9, 0));
}

#[test]
fn a_prompt_that_many_begin_with_is_computed_once() {
    let scheduler = default_scheduler();
    let choices: Vec<Answer> = (0..8).map(|_| ask(&scheduler, request(0, 500, 10))).collect();
    let tokens: Vec<Vec<u32>> = choices.into_iter().map(Answer::tokens).collect();
    for tokens in &tokens {
        assert_greedy(scheduler.engine(), &text(0, 500), tokens, "a choice");
    }
    assert!(scheduler.drain(LONG));
    let stats = scheduler.stats();
    // Fifteen blocks are full; the other twenty tokens each computes for itself.
    assert_eq!((stats.cached_tokens, stats.prompt_tokens), (7 * 480, 500 + 7 * 20));
    // Without a scope nothing is shared.
    let session = SessionOptions { scope: None, ..SessionOptions::default() };
    let scheduler = default_scheduler();
    let alone = || Request { session: session.clone(), ..request(0, 500, 10) };
    let choices: Vec<Answer> = (0..3).map(|_| ask(&scheduler, alone())).collect();
    let finished: Vec<Finished> = choices.into_iter().map(|choice| choice.all().1).collect();
    assert!(finished.iter().all(|finished| finished.cached_tokens == 0));
}

#[test]
fn others_go_on_where_the_one_that_computes_the_common_beginning_leaves() {
    let config = SchedulerConfig { chunk: 32, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), EngineConfig { batch: 32, ..two_threads() }), config);
    let answers: Vec<Answer> = (0..4).map(|_| ask(&scheduler, request(0, 3000, 5))).collect();
    let mut answers = answers.into_iter();
    let first = answers.next().unwrap();
    assert!(matches!(first.next(), Update::Started(_)));
    drop(first);
    for answer in answers {
        assert_greedy(scheduler.engine(), &text(0, 3000), &answer.tokens(), "a choice");
    }
    let stats = scheduler.stats();
    assert!(stats.prompt_tokens < 2 * 3000, "{stats:?}");
}

/// Allows two tokens in turn, up to a number.
struct Turns {
    left: usize,
}

impl TokenConstraint for Turns {
    fn mask(&mut self, allowed: &mut TokenMask) -> Result<(), String> {
        assert!(allowed.is_empty());
        match self.left {
            1000 => return Err("out of turn".into()),
            2000 => panic!("a defect"),
            3000 => {}
            left => allowed.allow(270 + left as u32 % 2),
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert_eq!(token, 270 + self.left as u32 % 2);
        self.left -= 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

#[test]
fn a_constraint_decides_and_its_failures_are_its_requests_alone() {
    let scheduler = default_scheduler();
    let constrained =
        |left| Request { constraint: Some(Box::new(Turns { left })), ..request(0, 20, 50) };
    let free = ask(&scheduler, request(0, 20, 50));
    let turns = ask(&scheduler, constrained(7));
    for (left, reason) in [(1000, "out of turn"), (2000, "panicked"), (3000, "no token")] {
        let failing = ask(&scheduler, constrained(left));
        let error = loop {
            match failing.next() {
                Update::Failed(error) => break error,
                Update::Started(_) | Update::Prefill { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(error.code(), "constraint");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let (tokens, finished) = turns.all();
    let tokens: Vec<u32> = tokens.iter().map(|token| token.token).collect();
    assert_eq!(tokens, [271, 270, 271, 270, 271, 270, 271]);
    assert_eq!(finished.reason, FinishReason::EndOfGeneration);
    assert_greedy(scheduler.engine(), &text(0, 20), &free.tokens(), "beside");
}

#[test]
fn log_probabilities_are_the_models_own() {
    let scheduler = default_scheduler();
    let vocab = scheduler.engine().model().vocab();
    let sampling = SamplingOptions {
        logit_bias: vec![(7, 100.0)],
        temperature: 3.0,
        ..SamplingOptions::default()
    };
    let options = GenerateOptions { sampling, ..greedy(8) };
    let request = Request { options, logprobs: Some(vocab), ..request(0, 30, 8) };
    let (tokens, _) = ask(&scheduler, request).all();
    let mut session = scheduler.engine().session();
    session.prefill(&text(0, 30)).unwrap();
    for token in tokens {
        assert_eq!(token.token, 7);
        let logprobs = token.logprobs.unwrap();
        let sum: f64 = logprobs.top.iter().map(|top| f64::from(top.logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        let expected = Logprobs::of(session.logits(), 7, vocab);
        assert!((logprobs.chosen - expected.chosen).abs() < 1e-2);
        assert!(logprobs.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        session.decode(7).unwrap();
    }
}

#[test]
fn embeddings_are_the_mean_of_the_hidden_states() {
    // A vocabulary projection that leaves the first hidden states as they are.
    let mut fixture = Fixture::new(&LLAMA, DType::F32);
    let vocab = fixture.tensors["output.weight"].shape[0];
    let identity: Vec<f32> =
        (0..vocab * LLAMA.dim).map(|i| f32::from(i / LLAMA.dim == i % LLAMA.dim)).collect();
    let tensor = Tensor::new(DType::F32, &[vocab, LLAMA.dim], &identity);
    fixture.tensors.insert("output.weight".into(), tensor);
    let config = SchedulerConfig { chunk: 48, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&fixture.model(), two_threads()), config);
    let beside: Vec<Answer> = (0..3).map(|i| ask(&scheduler, request(i, 40, 60))).collect();
    // The second time its blocks are in the prefix cache.
    for length in [200, 200, 1] {
        let embed = Request { kind: Kind::Embed, ..request(9, length, 0) };
        let answer = ask(&scheduler, embed);
        assert!(matches!(answer.next(), Update::Started(_)));
        let Update::Embedding(mean) = answer.next() else { panic!("no embedding") };
        assert_eq!(mean.len(), LLAMA.dim);
        let rows = scheduler.engine().session().prefill_all(&text(9, length)).unwrap();
        let mut expected = vec![0.0; LLAMA.dim];
        for row in rows.chunks_exact(vocab) {
            expected.iter_mut().zip(row).for_each(|(sum, x)| *sum += x / length as f32);
        }
        let error = relative_error(&mean, &expected);
        assert!(error < 1e-4, "{length} tokens: {error:e}");
    }
    for (i, answer) in (0..).zip(beside) {
        assert_greedy(scheduler.engine(), &text(i, 40), &answer.tokens(), "beside");
    }
}

#[test]
fn an_endless_text_goes_on_beside_others_and_through_pressure() {
    let model = Fixture::new(&Sizes { context: 256, ..LLAMA }, DType::F32).model();
    let scheduler = start(&engine(&model, two_threads()), SchedulerConfig::default());
    let session = SessionOptions { sinks: Some(4), ..SessionOptions::default() };
    let endless = Request { session, ..request(0, 600, 700) };
    let answers = [ask(&scheduler, endless), ask(&scheduler, request(1, 100, 100))];
    let [endless, beside] = answers.map(Answer::all);
    assert_eq!((endless.0.len(), endless.1.reason), (700, FinishReason::MaxTokens));
    assert_eq!(beside.0.len(), 100);
}

#[test]
fn a_sink_that_panics_ends_its_request_alone() {
    let scheduler = default_scheduler();
    let beside = ask(&scheduler, request(0, 20, 50));
    let sink = Box::new(|_| panic!("a sink of a test panics, as it should"));
    let _handle = scheduler.submit(request(1, 20, 50), sink).unwrap();
    assert_eq!(beside.tokens().len(), 50);
    until(&scheduler, "cancelled", |stats| stats.cancelled == 1);
}

#[test]
fn a_step_that_does_not_end_is_seen_from_outside() {
    let scheduler = default_scheduler();
    assert_eq!(scheduler.busy_for(), Duration::ZERO);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let sink = Box::new(move |_| {
        let _ = held.lock().unwrap().recv();
        ControlFlow::Break(())
    });
    let _handle = scheduler.submit(request(0, 20, 5), sink).unwrap();
    let start = Instant::now();
    while scheduler.busy_for() < Duration::from_millis(100) {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(release);
    assert!(scheduler.drain(LONG));
    assert_eq!(scheduler.busy_for(), Duration::ZERO);
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a sink of a test panics when it is dropped, as it should");
    }
}

#[test]
fn where_the_thread_ends_nobody_waits_for_what_will_not_come() {
    let scheduler = default_scheduler();
    let running = ask(&scheduler, request(0, 20, 4000));
    let bomb = PanicsWhenDropped;
    let sink = Box::new(move |_| {
        let _ = &bomb;
        ControlFlow::Continue(())
    });
    let handle = scheduler.submit(request(1, 20, 5), sink).unwrap();
    while running.updates.recv_timeout(LONG).is_ok() {}
    assert!(scheduler.drain(LONG));
    assert!(!scheduler.is_alive());
    assert!(matches!(scheduler.submit(request(2, 5, 5), self::sink().0), Err(Rejected::Draining)));
    drop(handle);
}

#[test]
fn the_same_seed_draws_the_same_whatever_else_runs() {
    let scheduler = default_scheduler();
    let sampled = |seed| {
        let sampling =
            SamplingOptions { seed: Some(seed), temperature: 1.5, ..SamplingOptions::default() };
        Request::new(text(0, 30), GenerateOptions { sampling, ..greedy(25) })
    };
    let by_itself = ask(&scheduler, sampled(1)).tokens();
    let others: Vec<Answer> = (1..8).map(|i| ask(&scheduler, request(i, 90, 60))).collect();
    let [again, other] = [1, 2].map(|seed| ask(&scheduler, sampled(seed)));
    assert_eq!(again.tokens(), by_itself);
    assert_ne!(other.tokens(), by_itself);
    drop(others);
}

/// A strict host whose RMSNorm traps where a condition on the number of an instance's calls holds.
fn trapping(condition: &str) -> Host {
    let config = HostConfig { strict: true, quarantine_after: u32::MAX, ..HostConfig::default() };
    let host = Host::new(config).unwrap();
    let pack =
        PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::trapping(condition))).build();
    host.install(pack.verify().unwrap()).unwrap();
    host
}

#[test]
fn a_step_that_fails_once_harms_nobody() {
    // An instance that traps is replaced, and its successor counts from the beginning.
    let host = trapping("i32.eq (global.get $calls) (i32.const 99)");
    let config = EngineConfig { threads: 1, ..EngineConfig::default() };
    let engine = Engine::new(model(), host, config).unwrap();
    let scheduler = start(&engine, SchedulerConfig::default());
    let answers: Vec<Answer> = (0..4).map(|i| ask(&scheduler, request(i, 30, 60))).collect();
    let texts: Vec<Vec<u32>> = answers.into_iter().map(Answer::tokens).collect();
    assert!(scheduler.stats().failed_steps > 2, "{:?}", scheduler.stats());
    let roomy = common::engine(&model(), two_threads());
    for (i, tokens) in (0..).zip(texts) {
        assert_greedy(&roomy, &text(i, 30), &tokens, &format!("request {i}"));
    }
    // Nor a session that is alone.
    let tokens = alone(&engine, &text(0, 30), &greedy(60)).0;
    assert_greedy(&roomy, &text(0, 30), &tokens, "a session");
}

#[test]
fn where_every_step_fails_each_request_is_told_why() {
    // More calls in a step than an instance answers.
    let host = trapping("i32.gt_u (global.get $calls) (i32.const 99)");
    let model = Fixture::new(&Sizes { layers: 60, ..QWEN2 }, DType::F32).model();
    let config = EngineConfig { threads: 1, ..EngineConfig::default() };
    let engine = Engine::new(model, host, config).unwrap();
    let scheduler = start(&engine, SchedulerConfig::default());
    let answers: Vec<Answer> = (0..4).map(|i| ask(&scheduler, request(i, 30, 60))).collect();
    for answer in answers {
        assert!(matches!(answer.next(), Update::Started(_)));
        let Update::Failed(error) = answer.next() else { panic!("it did not fail") };
        assert_eq!(error.code(), "kernel_trap");
    }
    assert!(scheduler.drain(LONG));
    assert_eq!(scheduler.engine().memory().kv.blocks, 0);
    let mut session = engine.session();
    let goes_on = &mut |_| ControlFlow::Continue(());
    let error = session.generate(&text(0, 30), &greedy(60), goes_on).unwrap_err();
    assert_eq!((error.code(), session.len()), ("kernel_trap", 0));
}

#[test]
fn tales_read_under_pressure_as_they_do_alone() {
    let (model, prompts) = tales(4, 11);
    let engine = engine(&model, two_threads());
    let expected: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| alone(&engine, prompt, &greedy(20)).0).collect();
    let config = SchedulerConfig { running: 5, chunk: 32, ..SchedulerConfig::default() };
    let scheduler = start(&engine, config);
    let priority = |i: usize| SessionOptions { priority: i as u8 % 3, ..SessionOptions::default() };
    let answers: Vec<Answer> = (prompts.iter().enumerate())
        .map(|(i, prompt)| {
            let session = priority(i);
            ask(&scheduler, Request { session, ..Request::new(prompt.clone(), greedy(20)) })
        })
        .collect();
    for (answer, expected) in answers.into_iter().zip(expected) {
        assert_eq!(answer.tokens(), expected);
    }
}

/// What a session of its own says of the tokens of a prompt.
fn scored(engine: &Engine, prompt: &[u32], top: usize) -> Vec<Option<Logprobs>> {
    let session = SessionOptions { scope: None, ..SessionOptions::default() };
    let mut all = vec![None];
    let each = &mut |index: usize, logits: &[f32]| {
        all.push(Some(Logprobs::of(logits, prompt[index + 1], top)));
    };
    // The last token predicts nothing of the prompt, and an only one is predicted by nothing.
    if prompt.len() > 1 {
        engine.session_with(&session).evaluate(&prompt[..prompt.len() - 1], 0, each).unwrap();
    }
    all
}

/// Scores a prompt; gives how many of its tokens were not computed, too.
fn score(scheduler: &Scheduler, request: Request) -> (Vec<Option<Logprobs>>, usize) {
    let answer = ask(scheduler, request);
    let (mut scores, mut tokens) = (None, 0);
    loop {
        match answer.next() {
            Update::Started(_) | Update::Prefill { .. } => {}
            Update::Prompt(told) => {
                assert!(scores.is_none() && tokens == 0, "told once, before the text");
                scores = Some(told);
            }
            Update::Token(_) => tokens += 1,
            Update::Done(finished) => return (scores.expect("scores"), finished.cached_tokens),
            other => panic!("{other:?}"),
        }
    }
}

fn assert_scores(found: &[Option<Logprobs>], expected: &[Option<Logprobs>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(found[0].is_none(), "{what}");
    for (at, pair) in found.iter().zip(expected).enumerate().skip(1) {
        let (Some(found), Some(expected)) = pair else { panic!("{what}: token {at}: {pair:?}") };
        let error = (found.chosen - expected.chosen).abs();
        assert!(error < 1e-3, "{what}: token {at} is off by {error:e}");
        assert_eq!(found.top.len(), expected.top.len(), "{what}: token {at}");
        for (found, expected) in found.top.iter().zip(&expected.top) {
            let error = (found.logprob - expected.logprob).abs();
            assert!(error < 1e-3, "{what}: an alternative to token {at} is off by {error:e}");
        }
    }
}

#[test]
fn prompts_are_scored_as_sessions_score_them_and_a_common_beginning_once() {
    let config = SchedulerConfig { chunk: 48, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model(), two_threads()), config);
    let scoring = |prompt: &[u32], top: usize| Request {
        prompt_logprobs: Some(top),
        ..Request::new(prompt.to_vec(), greedy(1))
    };
    let prompt = |number: u32| [text(40, 150), text(number, 10 + number as usize)].concat();
    // A text that begins alike leaves blocks in the prefix cache, of which no scores are known.
    ask(&scheduler, Request::new(prompt(0), greedy(2))).tokens();
    let beside = ask(&scheduler, request(90, 40, 200));
    let (found, cached) = score(&scheduler, scoring(&prompt(1), 2));
    assert_eq!(cached, 0);
    assert_scores(&found, &scored(scheduler.engine(), &prompt(1), 2), "the first");
    // Four whole blocks, of which the last token is computed again.
    for number in 2..8 {
        let (found, cached) = score(&scheduler, scoring(&prompt(number), 1));
        assert_eq!(cached, 127);
        assert_scores(&found, &scored(scheduler.engine(), &prompt(number), 1), "a later one");
    }
    let (found, cached) = score(&scheduler, scoring(&prompt(3), 5));
    assert_eq!(cached, 0, "less was known of each token");
    assert_scores(&found, &scored(scheduler.engine(), &prompt(3), 5), "more alternatives");
    let session = SessionOptions { scope: Some("other".into()), ..SessionOptions::default() };
    let (_, cached) = score(&scheduler, Request { session, ..scoring(&prompt(3), 1) });
    assert_eq!(cached, 0, "another scope");
    // The same again, and prompts that end where a block does, or have one token.
    let exact = text(41, 64);
    for (prompt, cached) in
        [(prompt(3), 159), (exact.clone(), 0), (exact, 32), (vec![5], 0), (text(42, 2), 0)]
    {
        let (found, taken) = score(&scheduler, scoring(&prompt, 1));
        assert_eq!(taken, cached, "{} tokens", prompt.len());
        let expected = scored(scheduler.engine(), &prompt, 1);
        assert_scores(&found, &expected, "of another length");
    }
    beside.tokens();
    // Together: those that begin alike wait for the one that computes the beginning.
    let before = scheduler.stats();
    let prompt = |number: u32| [text(50, 320), text(number, 8)].concat();
    let asked: Vec<Answer> = (0..8).map(|i| ask(&scheduler, scoring(&prompt(i), 0))).collect();
    for answer in asked {
        let (mut scores, mut done) = (0, false);
        while !done {
            match answer.next() {
                Update::Prompt(told) => scores = told.len(),
                update => done = matches!(update, Update::Done(_)),
            }
        }
        assert_eq!(scores, 328);
    }
    let computed = scheduler.stats().prompt_tokens - before.prompt_tokens;
    assert!(computed < 8 * 328 / 3, "{computed} tokens");
}

#[test]
fn scored_prompts_that_are_interrupted_are_told_whole() {
    let model = model();
    let roomy = engine(&model, two_threads());
    let told = |answer: &Answer| loop {
        match answer.next() {
            Update::Prompt(scores) => return scores,
            Update::Prefill { .. } | Update::Started(_) => {}
            other => panic!("{other:?}"),
        }
    };
    let scoring = |i: u32, prompt: usize, tokens: usize| Request {
        prompt_logprobs: Some(1),
        ..request(i, prompt, tokens)
    };
    // For a higher priority, in the middle of the prompt.
    let config = SchedulerConfig { running: 1, ..SchedulerConfig::default() };
    let scheduler = start(&engine(&model, tight(None)), config);
    let is_prefill = |update: &Update| matches!(update, Update::Prefill { .. });
    let (low, release) = ask_and_hold(&scheduler, scoring(1, 900, 1), is_prefill);
    while !is_prefill(&low.next()) {}
    let session = SessionOptions { priority: 9, ..SessionOptions::default() };
    let high = ask(&scheduler, Request { session, ..request(2, 900, 30) });
    drop(release);
    assert_eq!(high.tokens().len(), 30);
    assert_scores(&told(&low), &scored(&roomy, &text(1, 900), 1), "for a priority");
    assert!(scheduler.stats().preempted_for_priority > 0);
    // Where the memory is full: what was given up is computed again.
    let scheduler = start(&engine(&model, tight(None)), SchedulerConfig::default());
    let answers: Vec<Answer> = (0..20).map(|i| ask(&scheduler, scoring(i, 500, 150))).collect();
    for (i, answer) in (0..).zip(answers) {
        assert_scores(&told(&answer), &scored(&roomy, &text(i, 500), 1), "for memory");
        assert_eq!(answer.tokens().len(), 150);
    }
    let stats = scheduler.stats();
    assert!(stats.preempted_for_memory > 0 && stats.recomputed_tokens > 0, "{stats:?}");
}

#[test]
fn what_a_text_ended_by_is_told() {
    let scheduler = default_scheduler();
    let endless = SessionOptions { sinks: Some(4), ..SessionOptions::default() };
    let request = Request { prompt_logprobs: Some(0), session: endless, ..request(0, 5, 5) };
    let rejected = scheduler.submit(request, sink().0).unwrap_err();
    assert!(matches!(rejected, Rejected::Invalid(error) if error.code() == "invalid_option"));
    let (model, prompts) = tales(1, 0);
    let scheduler = start(&engine(&model, two_threads()), SchedulerConfig::default());
    let of = |options: GenerateOptions, logprobs| {
        let request = Request { logprobs, ..Request::new(prompts[0].clone(), options) };
        ask(&scheduler, request).all().1
    };
    let stop = vec!["never".to_owned(), "e".to_owned()];
    let stopped = of(GenerateOptions { stop, ..greedy(50) }, None);
    assert_eq!((stopped.reason, stopped.stop.as_deref()), (FinishReason::StopString, Some("e")));
    // The tale ends by itself.
    let whole = GenerateOptions { ignore_eos: false, ..greedy(400) };
    let ended = of(whole.clone(), Some(1));
    assert_eq!((ended.reason, ended.stop), (FinishReason::EndOfGeneration, None));
    let end = ended.end_token.expect("a token");
    assert!(model.tokenizer().is_eog(end.token) && end.text.is_empty());
    assert!(end.logprobs.unwrap().chosen > -1.0);
    assert_eq!(of(whole, None).end_token, None);
}
