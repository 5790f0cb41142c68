//! Chat templates against the reference's renderer, Jinja2 as `transformers` sets it up. Its texts are those
//! that `tests/scripts/template_reference.py` writes.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::repository;
use ruvllm_engine::chat::{ChatError, ChatTemplate, Renderer};
use serde_json::Value;

fn compile(source: &str, tokens: &BTreeMap<String, String>) -> Result<ChatTemplate, ChatError> {
    ChatTemplate::with_tokens(source, tokens, &Renderer::InProcess)
}

#[test]
fn templates_give_the_texts_of_the_reference() {
    let path = repository().join("tests/fixtures/templates/reference.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let tokens: BTreeMap<String, String> = serde_json::from_value(file["tokens"].clone()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() >= 478, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let (source, expected) =
            (case["template"].as_str().unwrap(), case["text"].as_str().unwrap());
        let text = compile(source, &tokens).and_then(|template| {
            template.render_with_tools(&file["messages"], Some(&file["tools"]), true)
        });
        match text {
            Ok(text) if text == expected => {}
            Ok(text) => wrong.push(format!("{source}\n   gives {text:?}\n  not    {expected:?}")),
            Err(error) => wrong.push(format!("{source}\n   fails: {error}\n  not    {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// What Python raises an exception for is an error of the rendering, and never a panic.
#[test]
fn what_the_reference_refuses_is_refused() {
    for source in [
        "{{ 'abc'.index('x') }}",
        "{{ 'a'.split('') }}",
        "{{ 'a'.partition('') }}",
        "{{ 'a'.center(3, 'xy') }}",
        "{{ [1].index(2) }}",
        "{{ {'a': 1} | tojson(separators=(',',)) }}",
        "{{ 1 | tojson(unknown=1) }}",
        "{{ '%d' % 'x' }}",
        "{{ 'a'.nothing() }}",
        // `none` has no items and no length, and is no text.
        "{% for x in none %}{% endfor %}",
        "{% for x in tools %}{% endfor %}",
        "{% for x in none if x %}{% endfor %}",
        "{% for a, b in [none] %}{% endfor %}",
        "{% set a, b = none %}",
        "{{ none | list }}",
        "{{ none | join }}",
        "{{ none | length }}",
        "{{ none | count }}",
        "{{ none | first }}",
        "{{ none | last }}",
        "{{ none | sum }}",
        "{{ none | min }}",
        "{{ none | max }}",
        "{{ none | sort }}",
        "{{ none | reverse }}",
        "{{ none | unique | list }}",
        "{{ none | batch(2) | list }}",
        "{{ none | slice(2) | list }}",
        "{{ none | groupby('x') }}",
        "{{ none | dictsort }}",
        "{{ none | items }}",
        "{{ none | random }}",
        "{{ ','.join(none) }}",
        "{{ 'a' in none }}",
        "{{ none + 'a' }}",
        // Nor have these.
        "{% for x in 3 %}{% endfor %}",
        "{% for x in true %}{% endfor %}",
        "{{ 3 | list }}",
        "{{ 3 | length }}",
        "{{ {'a': 1}.items() | tojson }}",
        // An undefined value is no number, and others can be none.
        "{{ nothing | int }}",
        "{{ nothing | float }}",
        "{{ ('inf' | float) | int }}",
        "{{ 'x' | int(1, 10, 2) }}",
        "{{ 'x' | float(none, 2) }}",
        "{{ [1, none] | sum }}",
        "{{ ['a'] | sum }}",
        "{{ [nothing] | sum }}",
        "{{ [[1], 2] | sum(start=[]) }}",
        "{{ 'a'.startswith(1) }}",
        "{{ 'a'.endswith((1,)) }}",
        // No text needs as many, and they would take all memory.
        "{{ 'a'.zfill(9999999999) }}",
        "{{ 'a' | center(9223372036854775807) }}",
        "{{ {'a': 1} | tojson(indent=9999999999) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    ] {
        let template = compile(source, &BTreeMap::new()).unwrap();
        let error = template.render(&[], false).unwrap_err();
        assert_eq!(error.code(), "chat_template_render", "{source}: {error}");
    }
    // Printing has no error to give.
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}";
    let text = compile(deep, &BTreeMap::new()).unwrap().render(&[], false).unwrap();
    assert!(text.starts_with("[[[[") && text.contains("[...]"), "{text}");
}

#[test]
fn a_template_for_tools_renders_the_conversations_that_have_tools() {
    let renderer = Renderer::InProcess;
    let [default, tool_use] = ["{{ bos_token }}plain", "{{ bos_token }}{{ tools | length }} tools"];
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let both =
        ChatTemplate::with_tool_template(default, Some(tool_use), &tokens, &renderer).unwrap();
    let rendered =
        |tools: Option<Value>| both.render_with_tools([0; 0], tools.as_ref(), true).unwrap();
    assert_eq!(rendered(None), "<s>plain");
    assert_eq!(rendered(Some(Value::Null)), "<s>plain");
    assert_eq!(rendered(Some(serde_json::json!([{}, {}]))), "<s>2 tools");
    let broken = ChatTemplate::with_tool_template(default, Some("{% if %}"), &tokens, &renderer);
    assert_eq!(broken.unwrap_err().code(), "chat_template_syntax");
}
