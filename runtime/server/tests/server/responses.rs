//! The newer of OpenAI's APIs of conversations.

use serde_json::{Value, json};

use crate::common::{Service, model};
use crate::structured::{HERMES, with_template_and};

fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": model(), "input": "Once upon a time", "max_output_tokens": 12, "temperature": 0,
    });
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tool() -> Value {
    json!({
        "type": "function", "name": "walk", "description": "Goes.", "strict": true,
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["river", "hill"]}},
            "required": ["place"],
            "additionalProperties": false,
        },
    })
}

/// The events of a stream, whose names must be their types and which must be numbered.
fn events(text: &str) -> Vec<Value> {
    let mut events = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.trim().is_empty()) {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert_eq!(data["sequence_number"], events.len());
        events.push(data);
    }
    events
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn a_response_has_the_text_and_repeats_what_was_asked() {
    let service = Service::start(&[]);
    let chat = json!({
        "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12, "temperature": 0,
    });
    let chat = service.ok("/v1/chat/completions", &chat);
    let response = service.ok("/v1/responses", &body(json!({"metadata": {"a": "b"}})));
    assert_eq!(text(&response), chat["choices"][0]["message"]["content"]);
    for (pointer, value) in [
        ("/object", json!("response")),
        ("/model", json!(model())),
        ("/status", json!("incomplete")),
        ("/incomplete_details/reason", json!("max_output_tokens")),
        ("/output/0/type", json!("message")),
        ("/output/0/role", json!("assistant")),
        ("/output/0/content/0/type", json!("output_text")),
        ("/usage/output_tokens", json!(12)),
        ("/usage/input_tokens", chat["usage"]["prompt_tokens"].clone()),
        ("/metadata/a", json!("b")),
        ("/max_output_tokens", json!(12)),
        ("/store", json!(false)),
        ("/tool_choice", json!("auto")),
    ] {
        assert_eq!(response.pointer(pointer), Some(&value), "{pointer}");
    }
    let whole = service.ok("/v1/responses", &body(json!({"max_output_tokens": 400})));
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]),
        (&json!("completed"), &Value::Null)
    );
}

#[test]
fn a_conversation_comes_as_items() {
    let service = Service::start(&[]);
    let items = json!([
        {"role": "developer", "content": "upon"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": " a time"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": ", there was", "annotations": []}]},
    ]);
    let response =
        service.ok("/v1/responses", &body(json!({"instructions": "Once", "input": items})));
    let prompt = json!({
        "messages": [
            {"role": "system", "content": "Once\n\nupon"}, {"role": "user", "content": " a time"},
            {"role": "assistant", "content": ", there was"},
        ],
        "max_tokens": 12, "temperature": 0,
    });
    let chat = service.ok("/v1/chat/completions", &prompt);
    assert_eq!(text(&response), chat["choices"][0]["message"]["content"]);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn a_stream_has_numbered_events_that_make_the_response() {
    let service = Service::start(&[]);
    let whole = service.ok("/v1/responses", &body(json!({})));
    let answer = service.post("/v1/responses", &body(json!({"stream": true})));
    let events = events(&answer.text);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let first = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ];
    assert_eq!(kinds[..5], first);
    let last = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds[kinds.len() - 4..], last);
    let pieces = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let pieces: String = pieces.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(pieces, text(&whole));
    let response = &events.last().unwrap()["response"];
    assert_eq!(text(response), pieces);
    assert_eq!(response["usage"]["output_tokens"], 12);
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["id"]),
        (&json!("in_progress"), &response["id"])
    );
}

#[test]
fn functions_are_called_and_schemas_kept() {
    for service in [Service::start(&[]), with_template_and(HERMES, &[])] {
        let named = json!({"type": "function", "name": "walk"});
        for choice in [json!("required"), named] {
            let request = json!({
                "tools": [tool()], "tool_choice": choice, "parallel_tool_calls": false,
                "max_output_tokens": 200,
            });
            let response = service.ok("/v1/responses", &body(request.clone()));
            let call = &response["output"][0];
            assert_eq!(
                (&response["status"], response["output"].as_array().unwrap().len()),
                (&json!("completed"), 1)
            );
            assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("walk")));
            let arguments: Value =
                serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(["river", "hill"].contains(&arguments["place"].as_str().unwrap()), "{call}");
            let mut streamed = request;
            streamed["stream"] = true.into();
            let events = events(&service.post("/v1/responses", &body(streamed)).text);
            let done = events.iter().find(|e| e["type"] == "response.function_call_arguments.done");
            assert_eq!(done.unwrap()["arguments"], call["arguments"]);
            let items = json!([
                {"role": "user", "content": "Go."},
                call,
                {"type": "function_call_output", "call_id": call["call_id"], "output": "There."},
            ]);
            service.ok("/v1/responses", &body(json!({"input": items})));
        }
    }
    let service = Service::start(&[]);
    let format = json!({"type": "json_schema", "name": "kind", "strict": true, "schema": {
        "type": "object", "properties": {"kind": {"enum": ["fox", "owl"]}}, "required": ["kind"],
        "additionalProperties": false,
    }});
    let request = json!({"text": {"format": format}, "max_output_tokens": 100});
    let response = service.ok("/v1/responses", &body(request));
    let kind: Value = serde_json::from_str(text(&response)).unwrap();
    assert!(kind["kind"] == "fox" || kind["kind"] == "owl", "{kind}");
}

#[test]
fn what_needs_a_memory_is_refused_and_so_is_what_is_not_known() {
    let service = Service::start(&[]);
    for (field, value, param, code) in [
        ("previous_response_id", json!("resp_1"), "previous_response_id", "unsupported_parameter"),
        ("conversation", json!("conv_1"), "conversation", "unsupported_parameter"),
        ("store", json!(true), "store", "unsupported_parameter"),
        ("background", json!(true), "background", "unsupported_parameter"),
        ("truncation", json!("auto"), "truncation", "unsupported_parameter"),
        ("include", json!(["reasoning.encrypted_content"]), "include", "unsupported_parameter"),
        ("reasoning", json!({"effort": "high"}), "reasoning", "unknown_parameter"),
        ("input", json!([]), "input", "invalid_value"),
        ("input", json!(null), "input", "missing_required_parameter"),
        ("input", json!([{"type": "item_reference", "id": "x"}]), "input[0].type", "invalid_value"),
        (
            "input",
            json!([{"role": "user", "content": [{"type": "input_image"}]}]),
            "input[0].content[0].type",
            "invalid_value",
        ),
        ("tools", json!([{"type": "web_search"}]), "tools[0].type", "invalid_value"),
        ("tool_choice", json!({"type": "function", "name": "f"}), "tool_choice", "invalid_value"),
        ("text", json!({"format": {"type": "xml"}}), "text.format.type", "invalid_value"),
        ("text", json!({"verbosity": "low"}), "text.verbosity", "unknown_parameter"),
        ("model", json!("none"), "model", "model_not_found"),
    ] {
        let status = if param == "model" { 404 } else { 400 };
        service.post("/v1/responses", &body(json!({field: value}))).refused(
            status,
            Some(param),
            code,
        );
    }
    let nothing = json!({
        "previous_response_id": null, "store": false, "truncation": "disabled", "include": [],
        "background": false, "stream_options": null,
    });
    service.ok("/v1/responses", &body(nothing));
}
