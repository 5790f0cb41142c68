//! Generation and measurements on random models.
#![allow(missing_docs)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::{Fixture, QWEN2, engine, repository, some_tokens, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::{
    BenchOptions, Engine, EngineConfig, Event, Finish, FinishReason, GenerateOptions, Model,
    SamplingOptions, bench, perplexity,
};

fn small(ctx: usize) -> Engine {
    let model = Fixture::new(&QWEN2, DType::F32).model();
    engine(&model, EngineConfig { ctx: Some(ctx), ..two_threads() })
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

/// Tokens, text and end of a generation from a fixed prompt.
fn generate(engine: &Engine, options: &GenerateOptions) -> (Vec<u32>, String, Finish) {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    let mut session = engine.session();
    let finish = engine
        .generate(&mut session, &some_tokens(5), options, &mut |event| {
            match event {
                Event::Token(token) => tokens.push(token),
                Event::Text(piece) => text.push_str(&piece),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    (tokens, text, finish)
}

#[test]
fn greedy_generation_takes_the_likeliest_token_each_time() {
    let engine = small(64);
    let (tokens, _, finish) = generate(&engine, &greedy(12));
    assert_eq!((tokens.len(), finish.reason), (12, FinishReason::MaxTokens));
    assert_eq!((finish.usage.prompt_tokens, finish.usage.completion_tokens), (5, 12));
    assert!(finish.timings.decode_tokens_per_second > 0.0);

    let mut session = engine.session();
    let mut logits = session.prefill(&some_tokens(5)).unwrap().to_vec();
    for token in tokens {
        // End tokens were banned.
        logits[2] = f32::NEG_INFINITY;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(token as usize, best);
        logits = session.decode(token).unwrap().to_vec();
    }
}

#[test]
fn an_end_of_sequence_that_only_the_configuration_names_ends_the_text() {
    let family = repository().join("tests/fixtures/models/llama2");
    let ending_with = |end: serde_json::Value| {
        let dir = tempfile::tempdir().unwrap();
        for file in ["model.safetensors", "tokenizer.json"] {
            std::fs::copy(family.join(file), dir.path().join(file)).unwrap();
        }
        let config = std::fs::read(family.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config["eos_token_id"] = end;
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let model = Arc::new(Model::open(dir.path()).unwrap());
        let options = GenerateOptions { ignore_eos: false, ..greedy(40) };
        generate(&engine(&model, two_threads()), &options)
    };
    let (whole, _, finish) = ending_with(serde_json::Value::Null);
    assert_eq!((whole.len(), finish.reason), (40, FinishReason::MaxTokens));
    let is_new = |&at: &usize| !whole[..at].contains(&whole[at]);
    let end = (0..whole.len()).rfind(is_new).unwrap();
    assert!(end > 0, "{whole:?}");
    let (tokens, _, finish) = ending_with(whole[end].into());
    assert_eq!((&tokens[..], finish.reason), (&whole[..end], FinishReason::EndOfGeneration));
}

#[test]
fn a_full_context_ends_generation() {
    let (tokens, _, finish) = generate(&small(9), &greedy(100));
    // Five of the prompt, four computed, and one more that the last of them predicts.
    assert_eq!((tokens.len(), finish.reason), (5, FinishReason::ContextFull));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let engine = small(200);
    let (_, whole, _) = generate(&engine, &greedy(60));
    let chars: Vec<(usize, char)> = whole.char_indices().collect();
    assert!(chars.len() > 8, "too little text to stop in: {whole:?}");
    let (start, end) = (chars[chars.len() / 2].0, chars[chars.len() / 2 + 2].0);
    let stop = whole[start..end].to_owned();
    let options = GenerateOptions { stop: vec![stop.clone()], ..greedy(60) };
    let (_, text, finish) = generate(&engine, &options);
    assert_eq!(finish.reason, FinishReason::StopString);
    assert_eq!(text, whole[..whole.find(&stop).unwrap()]);
}

#[test]
fn the_caller_can_break_off_at_any_event() {
    let engine = small(64);
    let mut session = engine.session();
    let mut seen = 0;
    let finish = session
        .generate(&some_tokens(5), &greedy(50), &mut |event| {
            seen += usize::from(matches!(event, Event::Token(_)));
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((finish.reason, finish.usage.completion_tokens), (FinishReason::Cancelled, 3));
    let finish =
        session.generate(&some_tokens(5), &greedy(50), &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((finish.reason, finish.usage.completion_tokens), (FinishReason::Cancelled, 0));
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let engine = small(64);
    let with = |seed| {
        let sampling =
            SamplingOptions { temperature: 1.5, seed: Some(seed), ..SamplingOptions::default() };
        generate(&engine, &GenerateOptions { sampling, ..greedy(16) }).0
    };
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
}

#[test]
fn perplexity_scores_the_second_half_of_each_chunk() {
    let engine = small(64);
    let text = "the cat the the cat a b c d e f the cat the cat";
    let tokenizer = engine.model().tokenizer();
    let tokens = tokenizer.encode(text, true).unwrap();
    let context = 8;
    let (mut sum, mut scored) = (0.0, 0);
    for chunk in tokens.chunks_exact(context) {
        let mut chunk = chunk.to_vec();
        chunk[0] = tokenizer.bos().unwrap();
        let logits = engine.session().prefill_all(&chunk).unwrap();
        let vocab = logits.len() / context;
        for at in context / 2..context - 1 {
            let row = &logits[at * vocab..][..vocab];
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            sum += total.ln() - f64::from(row[chunk[at + 1] as usize]);
            scored += 1;
        }
    }
    let mut chunks = 0;
    let result = perplexity(&engine, None, &format!("{text}\n"), context, &mut |_| {
        chunks += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((result.scored, result.chunks), (scored, chunks));
    let expected = (sum / f64::from(scored as u32)).exp();
    assert!((result.perplexity / expected - 1.0).abs() < 1e-4, "{result:?}, not {expected}");

    let short = perplexity(&engine, None, "the", context, &mut |_| ControlFlow::Continue(()));
    assert_eq!(short.unwrap_err().code(), "text_too_short");
}

#[test]
fn a_measurement_reports_every_repetition() {
    let engine = small(64);
    let options =
        BenchOptions { n_prompt: 16, n_gen: 0, n_depth: 0, n_parallel: 1, reps: 3, warmup: true };
    let row = bench(&engine, None, &options).unwrap();
    assert_eq!((row.test().as_str(), row.samples_ns.len()), ("pp16", 3));
    assert!(row.avg_ts > 0.0 && row.n_threads == 2);
    // Matrix products have figures of their own.
    let stats = engine.host().stats();
    let (products, others): (Vec<_>, Vec<_>) = stats.iter().partition(|of| of.op.op == "matmul");
    let spent = |of: &[&ruvllm_host::OpStats]| of.iter().map(|of| of.nanos).sum::<u64>();
    assert!(row.kernel_ns > 0 && spent(&products) > 0);
    assert!(row.kernel_ns <= spent(&others), "{} of {stats:?}", row.kernel_ns);
    let row = bench(&engine, None, &BenchOptions { n_depth: 8, ..options }).unwrap();
    assert_eq!((row.n_depth, row.test().as_str()), (8, "pp16 @ d8"));
    let error = bench(&engine, None, &BenchOptions { n_depth: 49, ..options }).unwrap_err();
    assert_eq!(error.code(), "prompt_too_long");
    let row = bench(&engine, None, &BenchOptions { n_prompt: 0, n_gen: 4, ..options }).unwrap();
    assert_eq!((row.test().as_str(), row.n_parallel), ("tg4", 1));
    let several = BenchOptions { n_prompt: 3, n_gen: 4, n_depth: 8, n_parallel: 5, ..options };
    let row = bench(&engine, None, &several).unwrap();
    assert_eq!((row.test().as_str(), row.n_parallel), ("pp3+tg4 x5 @ d8", 5));
    let (tokens, seconds) = (5.0 * (3.0 + 4.0), row.samples_ns[0] as f64 * 1e-9);
    assert!((row.samples_ts[0] / (tokens / seconds) - 1.0).abs() < 1e-9, "{row:?}");
    let error = bench(&engine, None, &BenchOptions { n_parallel: 0, ..options }).unwrap_err();
    assert_eq!(error.code(), "invalid_option");
    let error = bench(&engine, None, &BenchOptions { n_prompt: 65, ..options }).unwrap_err();
    assert_eq!(error.code(), "prompt_too_long");
    let error =
        bench(&engine, None, &BenchOptions { n_prompt: 0, n_gen: 0, ..options }).unwrap_err();
    assert_eq!(error.code(), "invalid_option");
}
