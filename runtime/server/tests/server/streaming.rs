//! Answers that come in pieces.

use serde_json::{Value, json};

use crate::common::{Service, events, model};

#[test]
fn chunks_of_a_text_make_the_text() {
    let service = Service::start(&[]);
    let mut body = json!({
        "model": model(), "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "logprobs": 1,
    });
    let whole = service.ok("/v1/completions", &body);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true, "include_obfuscation": false});
    let answer = service.post("/v1/completions", &body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let mut events = events(&answer.text);
    let usage = events.pop().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(20)));
    assert!(events.iter().all(|event| event["usage"].is_null() && event["id"] == usage["id"]));
    assert!(events.len() > 10);
    let text: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
    let reasons: Vec<&Value> =
        events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
    let (last, others) = reasons.split_last().unwrap();
    assert!(*last == "length" && others.iter().all(|reason| reason.is_null()));
    let offsets: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(Value::from(offsets), whole["choices"][0]["logprobs"]["text_offset"]);
}

#[test]
fn chunks_of_several_messages_make_each_message() {
    let service = Service::start(&[]);
    let mut body = json!({
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 15, "temperature": 1.5, "seed": 1, "n": 3,
    });
    let whole = service.ok("/v1/chat/completions", &body);
    body["stream"] = true.into();
    let events = events(&service.post("/v1/chat/completions", &body).text);
    for index in 0..3 {
        let mine =
            || events.iter().map(|event| &event["choices"][0]).filter(|c| c["index"] == index);
        assert_eq!(mine().next().unwrap()["delta"]["role"], "assistant");
        let text: String =
            mine().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(whole["choices"][index]["message"]["content"], text);
        let last = mine().next_back().unwrap();
        assert_eq!(last["delta"], json!({}));
        assert!(last["finish_reason"].is_string());
    }
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn a_stream_that_cannot_begin_is_refused_with_a_status() {
    let service = Service::start(&[]);
    let body = json!({"prompt": "a ".repeat(5000), "stream": true});
    service.post("/v1/completions", &body).refused(400, Some("prompt"), "context_length_exceeded");
    let body = json!({"prompt": "a", "stream_options": {"include_usage": true}});
    service.post("/v1/completions", &body).refused(400, Some("stream_options"), "invalid_value");
}
