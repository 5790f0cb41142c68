//! Every address, and what each parameter does.

use serde_json::{Value, json};

use crate::common::{Service, model};

const TALE: &str = "Once upon a time";

fn greedy(extra: Value) -> Value {
    let mut body = json!({"model": model(), "prompt": TALE, "max_tokens": 12, "temperature": 0});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn models_health_and_readiness_are_told() {
    let service = Service::start(&["--alias", "tales/q8", "--alias", "gpt-4o-mini"]);
    assert_eq!(service.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(service.get("/ready").json(), json!({"status": "ready"}));
    let list = service.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "tales/q8");
    assert_eq!(service.get("/v1/models/tales/q8").json(), list["data"][0]);
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert_eq!(service.get("/v1/models/gpt-4o-mini").json(), list["data"][1]);
    // Every id is served; answers have the first.
    for id in ["tales/q8", "gpt-4o-mini"] {
        let answer = service.ok("/v1/completions", &greedy(json!({"model": id, "max_tokens": 1})));
        assert_eq!(answer["model"], "tales/q8");
    }
    service.get("/v1/models/other").refused(404, Some("model"), "model_not_found");
    service.get("/nowhere").refused(404, None, "unknown_url");
    service.get("/v1/completions").refused(405, None, "method_not_allowed");
    let body = greedy(json!({"model": "other"}));
    service.post("/v1/completions", &body).refused(404, Some("model"), "model_not_found");
}

#[test]
fn the_models_id_is_that_of_its_file_and_has_no_space() {
    let service = Service::start(&[]);
    assert_eq!(service.get("/v1/models").json()["data"][0]["id"], "tales-q8_0");
    let answer = service.ok("/v1/completions", &greedy(json!({"model": "tales-q8_0"})));
    assert_eq!(answer["model"], "tales-q8_0");
    // The name in the file's metadata.
    let body = greedy(json!({"model": "ruvllm tales"}));
    service.post("/v1/completions", &body).refused(404, Some("model"), "model_not_found");
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let service = Service::start(&[]);
    let tokens = service.ok("/tokenize", &json!({"content": TALE}))["tokens"].clone();
    assert!(tokens.as_array().unwrap().len() > 1, "{tokens}");
    assert_eq!(service.ok("/detokenize", &json!({"tokens": tokens}))["content"], TALE);
    let with = service.ok("/tokenize", &json!({"content": TALE, "add_special": true}));
    assert_eq!(with["tokens"][0], 0);
    let pieces = service.ok("/tokenize", &json!({"content": "a é", "with_pieces": true}));
    let joined: Vec<u8> = pieces["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|token| match &token["piece"] {
            Value::String(text) => text.as_bytes().to_vec(),
            bytes => serde_json::from_value(bytes.clone()).unwrap(),
        })
        .collect();
    assert_eq!(joined, "a é".as_bytes());
    let bad = service.post("/detokenize", &json!({"tokens": [99999999]}));
    bad.refused(400, Some("tokens"), "invalid_value");
}

#[test]
fn completions_continue_texts_and_count_tokens() {
    let service = Service::start(&[]);
    let answer = service.ok("/v1/completions", &greedy(json!({})));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!(model())));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let text = choice["text"].as_str().unwrap();
    assert!(text.len() > 10, "{text}");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["total_tokens"], prompt + 12);
    // The same as token ids; and a list of both.
    let tokens = service.ok("/tokenize", &json!({"content": TALE, "add_special": true}));
    let both = service.ok("/v1/completions", &greedy(json!({"prompt": [tokens["tokens"], TALE]})));
    assert_eq!(both["choices"][0]["text"], text);
    assert_eq!(both["choices"][1]["text"], text);
    assert_eq!(
        (&both["choices"][1]["index"], &both["usage"]["completion_tokens"]),
        (&json!(1), &json!(24))
    );
}

#[test]
fn sampling_obeys_its_parameters() {
    let service = Service::start(&[]);
    let text = |extra: Value| {
        let body = greedy(extra);
        service.ok("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = text(json!({}));
    let stopped = service.ok("/v1/completions", &greedy(json!({"stop": [&plain[3..6], "never"]})));
    assert_eq!(stopped["choices"][0]["text"], plain[..3]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let warm = json!({"temperature": 2.0, "seed": 7, "max_tokens": 30});
    assert_eq!(text(warm.clone()), text(warm.clone()));
    let mut other = warm.clone();
    other["seed"] = 8.into();
    assert_ne!(text(warm.clone()), text(other));
    let mut several = warm;
    several["n"] = 3.into();
    let choices = service.ok("/v1/completions", &greedy(several))["choices"].clone();
    assert_eq!(choices.as_array().unwrap().len(), 3);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    // The first token, forbidden, and another, forced.
    let body = greedy(json!({"max_tokens": 1, "logprobs": 1}));
    let first = service.ok("/v1/completions", &body)["choices"][0]["logprobs"]["tokens"][0].clone();
    let id = service.ok("/tokenize", &json!({"content": first}))["tokens"][0].clone();
    let bias = json!({"logit_bias": {id.to_string(): -100}, "max_tokens": 1});
    assert_ne!(Value::from(text(bias)), first);
    let word = service.ok("/tokenize", &json!({"content": " dog"}))["tokens"][0].clone();
    let forced = text(json!({"logit_bias": {word.to_string(): 100}, "max_tokens": 3}));
    let piece = service.ok("/detokenize", &json!({"tokens": [word, word, word]}));
    assert_eq!(piece["content"], forced);
    // A penalty that outweighs the bias.
    let varied =
        json!({"logit_bias": {word.to_string(): 100}, "frequency_penalty": 2, "max_tokens": 60});
    assert_eq!(service.post("/v1/completions", &greedy(varied)).status, 200);
}

#[test]
fn log_probabilities_have_the_form_of_each_api() {
    let service = Service::start(&[]);
    let body = greedy(json!({"logprobs": 3, "max_tokens": 4}));
    let choice = service.ok("/v1/completions", &body)["choices"][0].clone();
    let logprobs = &choice["logprobs"];
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(tokens.concat(), choice["text"].as_str().unwrap());
    assert_eq!(logprobs["text_offset"][1], tokens[0].chars().count());
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 3);
    // Greedy text is the likeliest.
    assert_eq!(logprobs["top_logprobs"][2][tokens[2]], logprobs["token_logprobs"][2]);
    let body = json!({
        "messages": [{"role": "user", "content": TALE}],
        "temperature": 0, "max_tokens": 4, "logprobs": true, "top_logprobs": 2,
    });
    let chat = |body: &Value| service.ok("/v1/chat/completions", body)["choices"][0].clone();
    let content = chat(&body)["logprobs"]["content"].clone();
    assert_eq!(content.as_array().unwrap().len(), 4);
    let first = &content[0];
    assert_eq!(first["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(first["top_logprobs"][0]["logprob"], first["logprob"]);
    let bytes: Vec<u8> = serde_json::from_value(first["bytes"].clone()).unwrap();
    assert_eq!(bytes, first["token"].as_str().unwrap().as_bytes());
    // Of a text that ends with its first token, those of no token.
    let info = service.get("/tokenizer_info").json();
    let end = json!({"content": info["eos_token"]});
    let end = service.ok("/tokenize", &end)["tokens"][0].clone();
    let ends = json!({end.to_string(): 100});
    let body = greedy(json!({"logprobs": 3, "max_tokens": 4, "logit_bias": ends}));
    let choice = service.ok("/v1/completions", &body)["choices"][0].clone();
    let none = json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &none));
    let mut body = json!({"messages": [{"role": "user", "content": TALE}], "logit_bias": ends});
    assert_eq!(chat(&body)["logprobs"], Value::Null);
    body["logprobs"] = true.into();
    assert_eq!(chat(&body)["logprobs"], json!({"content": [], "refusal": null}));
}

#[test]
fn chat_answers_in_the_models_own_template() {
    let service = Service::start(&[]);
    let body = json!({
        "model": model(), "temperature": 0, "max_completion_tokens": 8, "user": "u",
        "messages": [
            {"role": "developer", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "Once upon"}, {"type": "text", "text": " a time"}]},
            {"role": "assistant", "content": null, "refusal": null, "annotations": []},
        ],
    });
    let answer = service.ok("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!(
        (&answer["object"], &choice["message"]["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    // The demo model's template joins the contents, so the answer is what continues the text.
    let text =
        service.ok("/v1/completions", &greedy(json!({"max_tokens": 8})))["choices"][0]["text"]
            .clone();
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
}

#[test]
fn a_prompt_that_was_computed_before_is_counted_as_cached() {
    let service = Service::start(&[]);
    let prompt = "The little fox walked down to the river and looked at the water. ".repeat(8);
    let body = greedy(json!({"prompt": prompt, "max_tokens": 2}));
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let first = service.ok("/v1/completions", &body);
    let again = service.ok("/v1/completions", &body);
    assert_eq!(cached(&first), 0);
    assert!(cached(&again) >= 64, "{again}");
    assert!(cached(&again) < again["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(first["choices"][0]["text"], again["choices"][0]["text"]);
}

#[test]
fn embeddings_are_unit_vectors_that_tell_texts_apart() {
    let service = Service::start(&[]);
    let input =
        ["The fox ran to the river.", "The fox ran to the river!", "A cake for the birthday"];
    let answer = service.ok("/v1/embeddings", &json!({"model": model(), "input": input}));
    let vectors: Vec<Vec<f64>> = answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| serde_json::from_value(item["embedding"].clone()).unwrap())
        .collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for vector in &vectors {
        assert_eq!(vector.len(), 256);
        // Numbers of 24 bits.
        assert!((dot(vector, vector) - 1.0).abs() < 1e-5);
    }
    assert!(dot(&vectors[0], &vectors[1]) > dot(&vectors[0], &vectors[2]));
    assert_eq!(answer["data"][2]["index"], 2);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 10);
    let body = json!({"input": input[0], "encoding_format": "base64"});
    let base64 = service.ok("/v1/embeddings", &body)["data"][0]["embedding"].clone();
    assert_eq!(base64.as_str().unwrap().len(), (256 * 4usize).div_ceil(3) * 4);
}
