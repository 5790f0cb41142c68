//! Encoders of texts beside the model, as models of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ruvllm_server::{EncoderFailure, Served, Server, TextEncoder};
use serde_json::json;

use crate::common::{Service, engine, options, served};

/// Gives the lengths of words, up to a width, and notices when nobody waits any more.
struct Lengths {
    cancelled: Arc<AtomicBool>,
}

impl TextEncoder for Lengths {
    fn dim(&self) -> usize {
        4
    }

    fn max_tokens(&self) -> usize {
        6
    }

    fn vocab_size(&self) -> usize {
        100
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, EncoderFailure> {
        let tokens: Vec<u32> = text.split_whitespace().map(|word| word.len() as u32).collect();
        match tokens.len() {
            1..=6 => Ok(tokens),
            _ => Err(EncoderFailure::Text {
                code: "context_length_exceeded",
                message: "too long".into(),
            }),
        }
    }

    fn embed(
        &self,
        tokens: &[u32],
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<f32>, EncoderFailure> {
        match tokens[0] {
            13 => return Err(EncoderFailure::Computing { message: "it broke".into() }),
            17 => {
                let start = Instant::now();
                while waited_for() {
                    assert!(start.elapsed() < Duration::from_secs(60), "still waited for");
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.cancelled.store(true, Ordering::Relaxed);
                return Err(EncoderFailure::Cancelled);
            }
            _ => {}
        }
        let mut vector = vec![0.0; 4];
        vector.iter_mut().zip(tokens).for_each(|(x, token)| *x = *token as f32);
        Ok(vector)
    }
}

fn with(names: &[&str]) -> (Served, Arc<AtomicBool>) {
    let cancelled = Arc::new(AtomicBool::new(false));
    let encoders = names.iter().map(|name| {
        let encoder = Lengths { cancelled: Arc::clone(&cancelled) };
        ((*name).to_owned(), Arc::new(encoder) as Arc<dyn TextEncoder>)
    });
    (Served { encoders: encoders.collect(), ..served(engine()) }, cancelled)
}

#[test]
fn encoders_are_listed_and_answer_by_their_name() {
    let service = Service::of(with(&["lengths", "others"]).0, &[]);
    let models = service.get("/v1/models").json();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids[1..], ["lengths", "others"]);
    let one = service.get("/v1/models/lengths").json();
    assert_eq!((&one["dimensions"], &one["context_length"]), (&json!(4), &json!(6)));

    let body = json!({"model": "lengths", "input": ["a fox", "the sea"]});
    let answer = service.ok("/v1/embeddings", &body);
    assert_eq!(answer["model"], "lengths");
    assert_eq!(answer["data"][1]["embedding"], json!([3.0, 3.0, 0.0, 0.0]));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 4, "total_tokens": 4}));
    let body =
        json!({"model": "lengths", "input": [5, 7], "encoding_format": "base64", "dimensions": 4});
    let answer = service.ok("/v1/embeddings", &body);
    assert_eq!(answer["data"][0]["embedding"], "AACgQAAA4EAAAAAAAAAAAA==");
    // Without a name it is the served model's own.
    let own = service.ok("/v1/embeddings", &json!({"input": "a fox"}));
    assert!(own["data"][0]["embedding"].as_array().unwrap().len() > 4);
}

#[test]
fn what_an_encoder_does_not_take_is_refused_with_its_place() {
    let service = Service::of(with(&["lengths"]).0, &["--max-choices", "3"]);
    let ask = |input| service.post("/v1/embeddings", &json!({"model": "lengths", "input": input}));
    ask(json!(["a", "a b c d e f g"])).refused(400, Some("input[1]"), "context_length_exceeded");
    ask(json!([[1], [100]])).refused(400, Some("input[1]"), "invalid_value");
    ask(json!(["a", "b", "c", "d"])).refused(400, Some("input"), "invalid_value");
    ask(json!(["thirteenchars"])).refused(503, None, "encoder_failed");
    let body = json!({"model": "lengths", "input": "a", "dimensions": 3});
    service.post("/v1/embeddings", &body).refused(400, Some("dimensions"), "unsupported_parameter");
    let body = json!({"model": "lengths", "input": "a", "other": 3});
    assert_eq!(service.post("/v1/embeddings", &body).status, 400);
    let body = json!({"model": "lengths", "messages": [{"role": "user", "content": "Hello"}]});
    service.post("/v1/chat/completions", &body).refused(
        400,
        Some("model"),
        "model_makes_embeddings",
    );
}

#[test]
fn an_encoder_is_told_when_the_request_s_time_is_up() {
    let (served, cancelled) = with(&["lengths"]);
    let service = Service::of(served, &["--request-timeout", "0.3"]);
    let body = json!({"model": "lengths", "input": "seventeenletterss"});
    service.post("/v1/embeddings", &body).refused(504, None, "timeout");
    assert!(cancelled.load(Ordering::Relaxed));
}

#[test]
fn names_are_taken_once() {
    for names in [["lengths", "lengths"], ["lengths", crate::common::model()]] {
        let error = Server::start(with(&names).0, options(&[])).err().expect("a name twice");
        assert!(error.to_string().contains("two models are named"), "{error}");
    }
}
