//! Answers of a given form: JSON, schemas, calls of tools.

use serde_json::{Value, json};

use crate::common::{Service, events};

fn chat(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 200, "temperature": 1.2, "seed": 3,
    });
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["fox", "bear", "owl"]},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "minItems": 1, "maxItems": 2},
        },
        "required": ["name", "kind", "age", "friends"],
        "additionalProperties": false,
        "$defs": {"friend": {"type": "boolean"}},
    })
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "hero", "strict": true, "schema": schema()}})
}

/// Whether it is as [`schema`] says.
fn check(text: &str) {
    let hero: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let fields: Vec<&String> = hero.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["name", "kind", "age", "friends"], "{text}");
    assert!(hero["name"].as_str().unwrap().chars().count() <= 8, "{text}");
    assert!(["fox", "bear", "owl"].contains(&hero["kind"].as_str().unwrap()), "{text}");
    assert!((1..=99).contains(&hero["age"].as_i64().unwrap()), "{text}");
    let friends = hero["friends"].as_array().unwrap();
    assert!((1..=2).contains(&friends.len()) && friends.iter().all(Value::is_boolean), "{text}");
}

#[test]
fn a_schema_is_kept_by_every_answer() {
    let service = Service::start(&[]);
    let answer =
        service.ok("/v1/chat/completions", &chat(json!({"response_format": format(), "n": 4})));
    for choice in answer["choices"].as_array().unwrap() {
        check(choice["message"]["content"].as_str().unwrap());
        assert_eq!(choice["finish_reason"], "stop");
    }
    let body = chat(json!({"response_format": format(), "stream": true}));
    let events = events(&service.post("/v1/chat/completions", &body).text);
    let text: String =
        events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    check(&text);
}

#[test]
fn json_mode_gives_an_object() {
    let service = Service::start(&[]);
    let format = json!({"response_format": {"type": "json_object"}, "max_tokens": 30});
    let answer = service.ok("/v1/chat/completions", &chat(format));
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('{'), "{text}");
    if choice["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
    }
}

#[test]
fn a_schema_that_cannot_be_kept_is_refused() {
    let service = Service::start(&[]);
    for (schema, code) in [
        (json!({"type": "nonsense"}), "invalid_schema"),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}),
            "invalid_schema",
        ),
        (json!({"type": "array", "uniqueItems": true}), "invalid_schema"),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let answer =
            service.post("/v1/chat/completions", &chat(json!({"response_format": format})));
        answer.refused(400, Some("response_format"), code);
    }
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}});
    let answer = service.post("/v1/chat/completions", &chat(format));
    answer.refused(400, Some("response_format.json_schema.schema"), "invalid_value");
}

pub(crate) const HERMES: &str = r#"{% if tools %}Tools: {{ tools | tojson }} Answer <tool_call>JSON</tool_call>.
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"#;

const LLAMA: &str = r#"{% if tools %}Environment: ipython {{ tools | tojson }} {"name": , "parameters": }
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}"#;

const MISTRAL: &str = r#"{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}{{ call.function | tojson }}{% endfor %}]{% elif m.role == "tool" %}[TOOL_RESULTS]{{ m.content }} {{ m.tool_call_id }}[/TOOL_RESULTS]{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"#;

const MISTRAL_ARGS: &str = r#"{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}[INST]{{ m.content }}[/INST]{% endfor %}"#;

/// No place for tools, but for calls, whose arguments it takes as texts.
const DEEPSEEK: &str = r#"{% for m in messages %}<{{ m.role }}>{{ m.content or "" }}{% for call in m.tool_calls or [] %}{{ "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + call.function.name + "<｜tool▁sep｜>" + call.function.arguments + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>" }}{% endfor %}{% endfor %}"#;

const PHI: &str = r#"{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m["tools"] %}<|tool|>{{ m["tools"] }}<|/tool|>{% endif %}{% endfor %}"#;

const QWEN3_CODER: &str = r#"{% if tools %}{{ tools | tojson }}<tool_call><function=name><parameter=key>value</parameter></function></tool_call>{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}{% for key, value in call.function.arguments | items %}<parameter={{ key }}>{{ value }}</parameter>{% endfor %}{% endfor %}{% endfor %}"#;

/// Tools and calls, in a way that is not known.
const UNKNOWN: &str = r#"{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.place }}){% endfor %}{% endfor %}"#;

/// No place for tools, and roles that have to take turns.
const STRICT: &str = r#"{% for m in messages %}{% if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must take turns") }}{% endif %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant: "#;

const TEMPLATES: [&str; 9] =
    [HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, DEEPSEEK, PHI, QWEN3_CODER, UNKNOWN, STRICT];

/// A server whose template knows tools.
fn with_template(template: &str) -> Service {
    with_template_and(template, &[])
}

pub(crate) fn with_template_and(template: &str, args: &[&str]) -> Service {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("template.jinja");
    std::fs::write(&path, template).unwrap();
    Service::start(&[&["--chat-template", path.to_str().unwrap()], args].concat())
}

fn tools() -> Value {
    let place = json!({
        "type": "object",
        "properties": {"place": {"enum": ["river", "hill"]}},
        "required": ["place"],
        "additionalProperties": false,
    });
    let tool = |name: &str| {
        let function = json!({"name": name, "description": "Goes.", "parameters": place});
        json!({"type": "function", "function": function})
    };
    json!([tool("walk"), tool("fly")])
}

fn check_call(call: &Value, names: &[&str], template: &str) {
    assert_eq!(call["type"], "function");
    let id = call["id"].as_str().unwrap();
    match template.contains("[TOOL_CALLS]") {
        true => assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{call}"),
        false => assert!(id.starts_with("call_"), "{call}"),
    }
    assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{call}");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let place = serde_json::from_str::<Value>(arguments).unwrap()["place"].clone();
    assert!(place == "river" || place == "hill", "{arguments}");
}

#[test]
fn tools_that_must_be_called_are_called_in_each_templates_format() {
    for template in TEMPLATES {
        let service = with_template(template);
        let named = json!({"type": "function", "function": {"name": "fly"}});
        let body = chat(json!({"tools": tools(), "tool_choice": named, "n": 2}));
        let answer = service.ok("/v1/chat/completions", &body);
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            let message = &choice["message"];
            assert!(message["content"].is_null(), "{message}");
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
            check_call(&message["tool_calls"][0], &["fly"], template);
        }
        // Marks that are no tokens of the model's take most of its context.
        let tools = if template == DEEPSEEK { json!([tools()[1]]) } else { tools() };
        let mut body = chat(json!({"tools": tools, "tool_choice": "required", "stream": true}));
        body["parallel_tool_calls"] = false.into();
        let events = events(&service.post("/v1/chat/completions", &body).text);
        let calls: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .collect();
        assert_eq!((calls.len(), &calls[0]["index"]), (1, &json!(0)));
        check_call(calls[0], &["walk", "fly"], template);
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn calls_and_what_tools_answered_are_shown_to_the_model() {
    let service = with_template(HERMES);
    let call = json!({
        "id": "call_1", "type": "function",
        "function": {"name": "walk", "arguments": "{\"place\": \"hill\"}"},
    });
    let mut messages = json!([
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "There."},
    ]);
    let body =
        |messages: &Value| chat(json!({"messages": messages, "tools": tools(), "max_tokens": 1}));
    let with = service.ok("/v1/chat/completions", &body(&messages));
    let plain = service.ok("/v1/chat/completions", &body(&json!([messages[0]])));
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&with) > tokens(&plain) + 10);
    messages[1]["tool_calls"][0]["function"]["arguments"] = "no JSON".into();
    let answer = service.post("/v1/chat/completions", &body(&messages));
    answer.refused(400, Some("messages[1].tool_calls.function.arguments"), "invalid_value");
    let both = chat(json!({"tools": tools(), "response_format": {"type": "json_object"}}));
    service.post("/v1/chat/completions", &both).refused(
        400,
        Some("response_format"),
        "invalid_value",
    );
    let unknown = json!({"type": "function", "function": {"name": "swim"}});
    let unknown = chat(json!({"tools": tools(), "tool_choice": unknown}));
    service.post("/v1/chat/completions", &unknown).refused(
        400,
        Some("tool_choice"),
        "invalid_value",
    );
}

#[test]
fn a_forced_call_that_is_cut_off_is_a_call_as_far_as_it_goes() {
    for template in TEMPLATES {
        let service = with_template(template);
        let named = json!({"type": "function", "function": {"name": "fly"}});
        let mut lengths = Vec::new();
        for tokens in (1..120).step_by(7) {
            let mut body =
                chat(json!({"tools": tools(), "tool_choice": named, "max_tokens": tokens}));
            let choice = service.ok("/v1/chat/completions", &body)["choices"][0].clone();
            let message = &choice["message"];
            if choice["finish_reason"] == "tool_calls" {
                break;
            }
            assert_eq!(choice["finish_reason"], "length", "{choice}");
            assert!(message["content"].is_null(), "{message}");
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1, "{message}");
            let function = &message["tool_calls"][0]["function"];
            let arguments = function["arguments"].as_str().unwrap();
            assert_eq!(function["name"], "fly");
            assert!(
                r#"{"place": "hill"}"#.starts_with(arguments)
                    || r#"{"place": "river"}"#.starts_with(arguments)
                    || arguments.starts_with(r#"{"place":"#),
                "{arguments}"
            );
            lengths.push(arguments.len());
            body["stream"] = true.into();
            let events = events(&service.post("/v1/chat/completions", &body).text);
            let reason = &events.last().unwrap()["choices"][0]["finish_reason"];
            assert_eq!(reason, "length");
            let delta =
                events.iter().find_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array());
            assert_eq!(delta.unwrap()[0]["function"], *function);
        }
        assert!(lengths.iter().any(|&len| len > 0), "{template}: {lengths:?}");
    }
    // Which of two is not known yet; it is no text all the same.
    let service = with_template(HERMES);
    let body = chat(json!({"tools": tools(), "tool_choice": "required", "max_tokens": 1}));
    let choice = service.ok("/v1/chat/completions", &body)["choices"][0].clone();
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(""), &json!("length"))
    );
}

#[test]
fn a_model_whose_template_has_no_place_for_tools_gets_a_generic_format() {
    // The demo model's own template, and one that takes no system message.
    for service in [Service::start(&[]), with_template(STRICT)] {
        assert_eq!(service.get("/v1/models").json()["data"][0]["tool_format"], "generic");
        let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
        let plain = service.ok("/v1/chat/completions", &chat(json!({"max_tokens": 1})));
        // Whatever the answer is, it is a text or a call, never half of each.
        for seed in 0..6 {
            let extra = json!({"tools": tools(), "seed": seed, "max_tokens": 60});
            let answer = service.ok("/v1/chat/completions", &chat(extra));
            // The model was told of the tools.
            assert!(tokens(&answer) > tokens(&plain) + 100, "{answer}");
            let choice = &answer["choices"][0];
            match choice["message"]["tool_calls"].as_array() {
                Some(calls) => check_call(&calls[0], &["walk", "fly"], ""),
                None => {
                    let text = choice["message"]["content"].as_str().unwrap();
                    assert!(!text.trim_start().starts_with('{'), "{text}");
                }
            }
        }
        // A text that begins as a call does is one, and keeps to a function's schema.
        let brace = service.ok("/tokenize", &json!({"content": "{"}))["tokens"][0].clone();
        let strict = json!({
            "type": "function",
            "function": {"name": "walk", "strict": true, "parameters": {
                "type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"],
                "additionalProperties": false,
            }},
        });
        let body =
            json!({"tools": [strict], "logit_bias": {brace.to_string(): 100}, "max_tokens": 200});
        let answer = service.ok("/v1/chat/completions", &chat(body));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let function = &choice["message"]["tool_calls"][0]["function"];
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(function["name"] == "walk" && arguments["far"].is_boolean(), "{function}");
        // What was called and answered is told in turns.
        let call = &choice["message"]["tool_calls"][0];
        let messages = json!([
            {"role": "user", "content": "Go."},
            choice["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "There."},
        ]);
        let body = chat(json!({"messages": messages, "tools": tools(), "max_tokens": 1}));
        service.ok("/v1/chat/completions", &body);
    }
}

#[test]
fn a_template_with_an_unknown_way_of_calls_is_left_to_it() {
    let service = with_template(UNKNOWN);
    assert_eq!(service.get("/v1/models").json()["data"][0]["tool_format"], "template");
    let tokens = |extra: Value| {
        let answer = service.ok("/v1/chat/completions", &chat(extra));
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = tokens(json!({"max_tokens": 1}));
    let auto = tokens(json!({"max_tokens": 1, "tools": tools()}));
    // Their names are all that it shows of them.
    assert!(auto > plain && auto < plain + 20, "{plain} {auto}");
    // A text is what the model says; nothing in it is held to a schema.
    let brace = service.ok("/tokenize", &json!({"content": "{"}))["tokens"][0].clone();
    let extra = json!({"tools": tools(), "logit_bias": {brace.to_string(): 100}, "max_tokens": 9});
    let choice = service.ok("/v1/chat/completions", &chat(extra))["choices"][0].clone();
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("{{") && choice["message"]["tool_calls"].is_null(), "{choice}");
    assert_eq!(choice["finish_reason"], "length");
    let mut strict = tools()[0].clone();
    strict["function"]["strict"] = true.into();
    let answer = service.post("/v1/chat/completions", &chat(json!({"tools": [strict]})));
    answer.refused(400, Some("tools"), "unsupported_parameter");
}

#[test]
fn mistral_is_shown_ids_that_its_template_takes() {
    let service = with_template(MISTRAL);
    assert_eq!(service.get("/v1/models").json()["data"][0]["tool_format"], "mistral");
    let messages = json!([
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": null, "tool_calls": [{
            "id": "call_0123456789abcdef", "type": "function",
            "function": {"name": "walk", "arguments": "{\"place\": \"hill\"}"},
        }]},
        {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": "There."},
    ]);
    let body = chat(json!({"messages": messages, "tools": tools(), "max_tokens": 1}));
    service.ok("/v1/chat/completions", &body);
}
