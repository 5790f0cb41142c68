//! Anthropic's API.

use ruvllm_server::ApiKey;
use serde_json::{Value, json};

use crate::common::{Answer, Service, model, read};
use crate::structured::{HERMES, with_template_and};

fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": model(), "max_tokens": 12, "temperature": 0,
        "messages": [{"role": "user", "content": "Once upon a time"}],
    });
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    let place = json!({
        "type": "object",
        "properties": {"place": {"enum": ["river", "hill"]}},
        "required": ["place"],
        "additionalProperties": false,
    });
    json!([
        {"name": "walk", "description": "Goes.", "input_schema": place, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "fly", "input_schema": place},
    ])
}

/// The events of a stream, whose names must be their types.
fn events(text: &str) -> Vec<Value> {
    let mut events = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.trim().is_empty()) {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        events.push(data);
    }
    events
}

fn text_of(service: &Service, prompt: &str, tokens: usize) -> String {
    let body = json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0});
    let answer = service.ok("/v1/completions", &body);
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_message_is_answered_with_its_reason_and_token_counts() {
    let service = Service::start(&[]);
    let answer = service.ok("/v1/messages", &body(json!({"metadata": {"user_id": "u"}})));
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    for (name, value) in [
        ("type", "message"),
        ("role", "assistant"),
        ("model", model()),
        ("stop_reason", "max_tokens"),
    ] {
        assert_eq!(answer[name], value);
    }
    // The demo model's template joins the contents.
    let text = text_of(&service, "Once upon a time", 12);
    assert_eq!(answer["content"], json!([{"type": "text", "text": text}]));
    assert!(answer["stop_sequence"].is_null());
    let (usage, count) = (
        &answer["usage"],
        service.ok(
            "/v1/messages/count_tokens",
            &json!({
                "model": model(), "messages": body(json!({}))["messages"],
            }),
        ),
    );
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&count["input_tokens"], &json!(12))
    );
    // Which string it was that ended the text.
    let stops = json!({"stop_sequences": ["never", &text[3..6]]});
    let answer = service.ok("/v1/messages", &body(stops));
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!(text[3..6]))
    );
    assert_eq!(answer["content"][0]["text"], text[..3]);
    let answer = service.ok("/v1/messages", &body(json!({"max_tokens": 400})));
    assert_eq!(answer["stop_reason"], "end_turn");
}

#[test]
fn a_system_text_blocks_and_a_beginning_become_the_prompt() {
    let service = Service::start(&[]);
    let messages = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "upon a time,", "cache_control": {"type": "ephemeral"}},
        ]},
        {"role": "assistant", "content": " there was a little"},
    ]);
    let system = json!([{"type": "text", "text": "Once "}]);
    let answer = service.ok("/v1/messages", &body(json!({"system": system, "messages": messages})));
    let text = text_of(&service, "Once upon a time, there was a little", 12);
    assert_eq!(answer["content"][0]["text"], text);
    let long = "The little fox walked down to the river and looked at the water. ".repeat(8);
    let request = body(json!({"system": long}));
    let (first, again) =
        (service.ok("/v1/messages", &request), service.ok("/v1/messages", &request));
    let count = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
    assert_eq!(count(&first, "cache_read_input_tokens"), 0);
    assert!(count(&again, "cache_read_input_tokens") >= 64, "{again}");
    let all = |answer| count(answer, "input_tokens") + count(answer, "cache_read_input_tokens");
    assert_eq!(all(&first), all(&again));
}

#[test]
fn a_stream_has_the_events_that_clients_read() {
    let service = Service::start(&[]);
    let whole = service.ok("/v1/messages", &body(json!({})));
    let answer = service.post("/v1/messages", &body(json!({"stream": true})));
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events = events(&answer.text);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let start = &events[0]["message"];
    assert!(start["stop_reason"].is_null() && start["content"] == json!([]), "{start}");
    let count = |usage: &Value| {
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(&start["usage"]), count(&whole["usage"]));
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, whole["content"][0]["text"].as_str().unwrap());
    let last = &events[events.len() - 2];
    assert_eq!(
        (&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(12))
    );
}

#[test]
fn tools_are_called_and_their_results_shown() {
    for service in [Service::start(&[]), with_template_and(HERMES, &[])] {
        let choice = json!({"type": "any", "disable_parallel_tool_use": true});
        let request = json!({"tools": tools(), "tool_choice": choice, "max_tokens": 200});
        let answer = service.ok("/v1/messages", &body(request.clone()));
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let call = answer["content"][0].clone();
        assert_eq!(
            (answer["content"].as_array().unwrap().len(), &call["type"]),
            (1, &json!("tool_use"))
        );
        assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
        assert!(["river", "hill"].contains(&call["input"]["place"].as_str().unwrap()), "{call}");
        let mut streamed = request;
        streamed["stream"] = true.into();
        let events = events(&service.post("/v1/messages", &body(streamed)).text);
        let begun = events.iter().find(|event| event["type"] == "content_block_start").unwrap();
        assert_eq!(begun["content_block"]["input"], json!({}));
        assert_eq!(begun["content_block"]["name"], call["name"]);
        let parts = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
        let input: Value = serde_json::from_str(&parts.collect::<String>()).unwrap();
        assert_eq!(input, call["input"]);
        // Cut off, it is a call all the same.
        let named = json!({"type": "tool", "name": "fly"});
        let cut = json!({"tools": tools(), "tool_choice": named, "max_tokens": 5});
        let answer = service.ok("/v1/messages", &body(cut));
        assert_eq!(
            (&answer["stop_reason"], &answer["content"][0]["name"]),
            (&json!("max_tokens"), &json!("fly"))
        );
        let messages = json!([
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": [{"type": "text", "text": "Well."}, call]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "There."}]},
                {"type": "text", "text": "And now?"},
            ]},
        ]);
        let with = json!({"messages": messages, "tools": tools(), "tool_choice": {"type": "none"}});
        service.ok("/v1/messages", &body(with));
    }
}

/// Asserts an error in the form of this API.
fn refused(answer: &Answer, status: u16, kind: &str, param: Option<&str>) {
    let json = answer.json();
    assert_eq!((answer.status, &json["type"]), (status, &json!("error")), "{}", answer.text);
    let error = &json["error"];
    assert_eq!((&error["type"], error["param"].as_str()), (&json!(kind), param), "{}", answer.text);
    assert!(error["message"].is_string() && answer.header("request-id").is_some());
    // The whole of it came.
    assert_eq!(
        answer.header("content-length").map(str::to_owned),
        Some(answer.text.len().to_string())
    );
}

#[test]
fn what_is_refused_is_named_in_the_form_of_this_api() {
    let (alice, entry) = ApiKey::generate("alice").unwrap();
    let mut service = Service::start(&["--api-key", &entry.to_string()]);
    refused(&service.post("/v1/messages", &body(json!({}))), 401, "authentication_error", None);
    // The key is where clients of this API send it.
    let request = service.agent.post(service.url("/v1/messages")).header("x-api-key", &alice);
    let answer = request.content_type("application/json").send(body(json!({})).to_string());
    assert_eq!(read(answer.unwrap()).status, 200);
    service.key = Some(alice);
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    let strange = json!([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]);
    for (field, value, param) in [
        ("max_tokens", json!(null), "max_tokens"),
        ("messages", json!([]), "messages"),
        ("messages", json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
        ("messages", image, "messages[0].content[0].type"),
        ("messages", strange, "messages[0].content[0].x"),
        ("system", json!([{"type": "image"}]), "system[0].type"),
        ("thinking", json!({"type": "enabled", "budget_tokens": 1024}), "thinking"),
        ("tools", json!([{"type": "bash_20250124", "name": "bash"}]), "tools[0].type"),
        ("tools", json!([{"name": "f"}]), "tools[0].input_schema"),
        ("tool_choice", json!({"type": "tool", "name": "f"}), "tool_choice"),
        ("tool_choice", json!({"type": "maybe"}), "tool_choice.type"),
        ("output_config", json!({"format": {"type": "xml"}}), "output_config.format.type"),
        ("output_config", json!({"effort": "high"}), "output_config.effort"),
        ("mcp_servers", json!([{"url": "x"}]), "mcp_servers"),
        ("temperature", json!(9), "temperature"),
    ] {
        let answer = service.post("/v1/messages", &body(json!({field: value})));
        refused(&answer, 400, "invalid_request_error", Some(param));
    }
    let answer = service.post("/v1/messages", &body(json!({"model": "claude"})));
    refused(&answer, 404, "not_found_error", Some("model"));
    refused(&service.get("/v1/messages"), 405, "invalid_request_error", None);
    service.ok("/v1/messages", &body(json!({"thinking": {"type": "disabled"}, "top_k": 5})));
}
