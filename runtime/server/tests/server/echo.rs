//! How likely prompts are: what evaluation harnesses ask for.

use ruvllm_engine::{Engine, EngineConfig, Logprobs, SessionOptions};
use ruvllm_host::{Host, HostConfig};
use serde_json::{Value, json};

use crate::common::{Service, demo, events, served};

const TALE: &str = "Once upon a time, there was a little girl named Wren. She loved to dance.";

/// An engine whose numbers do not depend on what is computed together.
pub(crate) fn deterministic() -> Engine {
    let host = Host::new(HostConfig { deterministic: true, ..HostConfig::default() }).unwrap();
    let memory = Some(256 << 20);
    Engine::new(demo(), host, EngineConfig { threads: 1, memory, ..EngineConfig::default() })
        .unwrap()
}

fn request(prompt: Value) -> Value {
    json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true, "seed": 1234})
}

/// What a session of the library says of each token but the first.
fn library(engine: &Engine, tokens: &[u32]) -> Vec<f32> {
    let session = SessionOptions { scope: None, ..SessionOptions::default() };
    let mut all = Vec::new();
    let each = &mut |at: usize, logits: &[f32]| {
        all.push(Logprobs::of(logits, tokens[at + 1], 0).chosen);
    };
    engine.session_with(&session).evaluate(&tokens[..tokens.len() - 1], 0, each).unwrap();
    all
}

fn numbers(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

fn tokens(service: &Service, text: &str) -> Vec<u32> {
    let body = json!({"content": text, "add_special": true});
    serde_json::from_value(service.ok("/tokenize", &body)["tokens"].clone()).unwrap()
}

#[test]
fn a_prompt_is_told_with_the_log_probabilities_of_the_library() {
    let engine = deterministic();
    let service = Service::of(served(engine.clone()), &[]);
    let ids = tokens(&service, TALE);
    let expected = library(&engine, &ids);
    for prompt in [json!(TALE), json!(ids)] {
        let answer = service.ok("/v1/completions", &request(prompt));
        let choice = &answer["choices"][0];
        let logprobs = &choice["logprobs"];
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[list].as_array().unwrap().len(), ids.len() + 1, "{list}");
        }
        assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
        let told = logprobs["token_logprobs"].as_array().unwrap()[1..ids.len()].to_vec();
        assert_eq!(numbers(&told.into()), expected);
        assert_eq!(answer["usage"]["completion_tokens"], 1);
        for (at, top) in logprobs["top_logprobs"].as_array().unwrap().iter().enumerate().skip(1) {
            let top = top.as_object().unwrap();
            let (word, best) = top.iter().next().unwrap();
            assert_eq!(top.len(), 1);
            let (token, own) = (&logprobs["tokens"][at], &logprobs["token_logprobs"][at]);
            assert!(best.as_f64() >= own.as_f64());
            assert_eq!(token == word, best == own, "token {at}");
        }
    }
    // Without a token more, and without log-probabilities.
    let mut body = request(json!(TALE));
    body["max_tokens"] = 0.into();
    let choice = service.ok("/v1/completions", &body)["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(TALE), &json!("length")));
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), ids.len());
    body["logprobs"] = Value::Null;
    body["max_tokens"] = 4.into();
    let choice = service.ok("/v1/completions", &body)["choices"][0].clone();
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with(TALE) && text.len() > TALE.len() + 4, "{text}");
    assert!(choice["logprobs"].is_null());
}

#[test]
fn offsets_say_where_tokens_are_in_the_text() {
    let service = Service::start(&[]);
    let prompt = "An owl — 🦉 — said: naïve.";
    let body =
        json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 0, "echo": true});
    let choice = service.ok("/v1/completions", &body)["choices"][0].clone();
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    let offsets: Vec<usize> = serde_json::from_value(logprobs["text_offset"].clone()).unwrap();
    let mut whole = 0;
    for (token, &at) in logprobs["tokens"].as_array().unwrap().iter().zip(&offsets) {
        let word: Vec<char> = token.as_str().unwrap().chars().collect();
        // Control tokens and parts of characters are no text.
        if text[at..].starts_with(&word) {
            whole += word.len();
        }
    }
    assert!(offsets.is_sorted() && whole > text.len() - 8, "{choice}");
}

#[test]
fn several_prompts_are_told_in_their_order_and_in_streams() {
    let service = Service::of(served(deterministic()), &[]);
    let prompts = [json!(TALE), json!(tokens(&service, "The fox")), json!("A")];
    let mut body = request(json!(prompts));
    body["n"] = 2.into();
    let whole = service.ok("/v1/completions", &body)["choices"].clone();
    assert_eq!(whole.as_array().unwrap().len(), 6);
    for (index, prompt) in prompts.iter().enumerate() {
        let alone = service.ok("/v1/completions", &request(prompt.clone()))["choices"][0].clone();
        for choice in [&whole[2 * index], &whole[2 * index + 1]] {
            assert_eq!(choice["logprobs"]["tokens"], alone["logprobs"]["tokens"]);
            assert_eq!(choice["logprobs"]["token_logprobs"], alone["logprobs"]["token_logprobs"]);
        }
    }
    body["stream"] = true.into();
    let events = events(&service.post("/v1/completions", &body).text);
    for index in 0..6 {
        let mine = || events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == index);
        let text: String = mine().filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(whole[index]["text"], text);
        let told: Vec<Value> = mine()
            .filter_map(|choice| choice["logprobs"]["token_logprobs"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(whole[index]["logprobs"]["token_logprobs"], Value::from(told));
    }
    // Without log-probabilities, the prompt comes first.
    body["logprobs"] = Value::Null;
    let text = service.post("/v1/completions", &body).text;
    let first: Value =
        serde_json::from_str(text.lines().next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(first["choices"][0]["text"], TALE);
}

/// A harness cuts off the last token, which it takes to be the one that was generated.
#[test]
fn a_model_that_has_nothing_to_add_tells_the_token_that_ends_the_text() {
    let service = Service::start(&[]);
    let body = json!({"prompt": TALE, "max_tokens": 400, "temperature": 0});
    let answer = service.ok("/v1/completions", &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let whole = format!("{TALE}{}", answer["choices"][0]["text"].as_str().unwrap());
    let ids = tokens(&service, &whole);
    let answer = service.ok("/v1/completions", &request(json!(whole)));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["text"]), (&json!("stop"), &json!(whole)));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), ids.len() + 1, "{choice}");
    assert!(logprobs["token_logprobs"][ids.len()].as_f64().unwrap() > -1.0);
}

#[test]
fn of_prompts_with_a_common_context_less_than_an_eighth_is_computed() {
    let service = Service::start(&[]);
    let tale = "The little fox walked down to the river and looked at the water. ".repeat(40);
    let tale = tokens(&service, &tale);
    let context = |first: u32| -> Vec<u32> { [&[first], &tale[1..321]].concat() };
    let continuation = |i: u32| -> Vec<u32> { (0..8).map(|at| 300 + 7 * i + at).collect() };
    let score = |prompts: Vec<Vec<u32>>| -> f64 {
        let computed = || service.metric("ruvllm_tokens_total{kind=\"prompt\"}");
        let before = computed();
        for batch in prompts.chunks(8) {
            let answer = service.ok("/v1/completions", &request(json!(batch)));
            assert_eq!(answer["choices"].as_array().unwrap().len(), batch.len());
        }
        computed() - before
    };
    let anew = (0..24).map(|i| [context(100 + i), continuation(i)].concat()).collect();
    let alike = (0..24).map(|i| [context(99), continuation(i)].concat()).collect();
    let (all, few) = (score(anew), score(alike));
    assert_eq!(all, f64::from(24 * 329));
    assert!(few < all / 8.0, "{few} of {all} tokens");
}

#[test]
fn a_tokenizer_is_told_as_harnesses_ask_for_it() {
    let service = Service::start(&[]);
    let info = service.get("/tokenizer_info").json();
    let begins = info["bos_token"].as_str().unwrap();
    assert!(info["eos_token"].is_string() && info["chat_template"].is_string(), "{info}");
    let ids = |body: Value| service.ok("/tokenize", &body)["tokens"].clone();
    assert_eq!(ids(json!({"prompt": begins, "add_special_tokens": false}))[0], 0);
    let plain = ids(json!({"content": TALE}));
    assert_eq!(ids(json!({"prompt": TALE, "add_special_tokens": false})), plain);
    assert_eq!(ids(json!({"prompt": TALE}))[0], 0);
    let text = service.ok("/detokenize", &json!({"tokens": plain}));
    assert_eq!((&text["prompt"], &text["content"]), (&json!(TALE), &json!(TALE)));
}
