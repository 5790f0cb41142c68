//! Chat templates that try to end the process, or to take its memory and time; and those that others
//! publish.

use crate::program::{demo_with, repository, ruvllm};
use crate::serving::Serving;
use ruvllm::engine::chat::{ChatError, ChatTemplate};
use ruvllm::{HelperProcess, Message, Renderer};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn process() -> HelperProcess {
    HelperProcess {
        program: env!("CARGO_BIN_EXE_ruvllm").into(),
        memory_bytes: 256 << 20,
        time: Duration::from_secs(3),
        ..HelperProcess::this_program(Renderer::COMMAND)
    }
}

fn compile(source: &str) -> Result<ChatTemplate, ChatError> {
    ChatTemplate::new(source, "<s>", "</s>", &Renderer::Process(process()))
}

fn user(text: &str) -> [Message; 1] {
    [Message::new("user", text)]
}

/// A template that doubles `ns.x` sixty times.
fn doubling(step: &str) -> String {
    format!(
        "{{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x | length }}}}"
    )
}

/// Every construct that is known to cost an interpreter its stack, its memory, its time or its life.
fn hostile() -> Vec<(&'static str, String)> {
    // Each link is ten bytes or so, and a template may have 1 MiB.
    let n = 70_000;
    let chain =
        |start: &str, link: &str, end: &str| format!("{{{{ {start}{}{end} }}}}", link.repeat(n));
    let slow = "{% set s = 'a' * 5000 %}{% for a in s %}{% for b in s %}{% for c in s %}{{ s | upper | lower | length }}{% endfor %}{% endfor %}{% endfor %}";
    let cycle = |end: &str| format!("{{% set ns = namespace() %}}{{% set ns.a = ns %}}{end}");
    vec![
        ("a chain of ~", chain("'a'", " ~ 'a'", "")),
        ("a chain of +", chain("1", " + 1", "")),
        ("a chain of not", chain("", "not ", "a")),
        ("a chain of -", chain("", "-", "1")),
        ("a chain of attributes", chain("a", ".a", "")),
        ("a chain of items", chain("a", "[0]", "")),
        ("a chain of calls", chain("a", "()", "")),
        ("a chain of filters", chain("'a'", "|e", "")),
        ("a chain of tests", chain("a", " is defined", "")),
        ("a chain of and", chain("a", " and a", "")),
        ("a chain of in", chain("a", " in a", "")),
        ("parentheses", chain("", "(", &format!("1{}", ")".repeat(n)))),
        ("lists", chain("", "[", &"]".repeat(n))),
        ("ternaries", chain("1", " if a else 1", "")),
        ("a chain of elif", format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000))),
        ("blocks in blocks", format!("{}{}", "{% if 1 %}".repeat(40_000), "{% endif %}".repeat(40_000))),
        ("a namespace in itself, printed", cycle("{{ ns }}")),
        ("a namespace in itself, as JSON", cycle("{{ ns | tojson }}")),
        ("a namespace in itself, compared", cycle("{% set b = namespace() %}{% set b.a = b %}{{ ns == b }}")),
        ("a namespace in itself, sorted", cycle("{{ [ns, ns] | sort }}")),
        ("doubling by ~", doubling("ns.x ~ ns.x")),
        ("doubling by +", doubling("ns.x + ns.x")),
        ("doubling by replace", doubling("ns.x | replace('a', 'aa')")),
        ("doubling by join", doubling("[ns.x, ns.x] | join(ns.x)")),
        ("doubling by format", doubling("'%s%s' | format(ns.x, ns.x)")),
        ("doubling of a list", doubling("[ns.x, ns.x] | tojson")),
        ("repetition", "{{ ('a' * 100000000000) | length }}".into()),
        ("an indent of JSON", "{{ [1] | tojson(indent=100000000000) }}".into()),
        ("a width of format", "{{ '%100000000000s' | format('a') | length }}".into()),
        ("a precision of format", "{{ '%.2000000000f' | format(1.5) | length }}".into()),
        ("an indent of a text", "{{ 'a\nb' | indent(100000000000) | length }}".into()),
        ("batch", "{{ [1] | batch(0) | list }}{{ [1] | batch(1000000000000, 0) | list | length }}".into()),
        ("slice", "{{ [1] | slice(1000000000000) | list | length }}".into()),
        ("a range", "{{ range(1000000000000) | list | length }}".into()),
        ("a list in a list, and so on", "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% for j in range(40) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{{ ns.x }}".into()),
        ("a macro that calls itself", "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into()),
        ("loops over long texts", slow.into()),
        ("a long text", "{% for i in range(9999) %}{{ 'a' * 10000 }}{% endfor %}".into()),
        ("a long refusal", "{{ raise_exception('a' * 30000000) }}".into()),
    ]
}

#[test]
fn no_construct_of_a_template_costs_more_than_its_limits() {
    let healthy = compile("{{ messages[0].content }}").unwrap();
    let mut harmless = Vec::new();
    for (name, source) in hostile() {
        let begun = Instant::now();
        let codes = [
            "chat_template_limit",
            "chat_template_timeout",
            "chat_template_render",
            "chat_template_refused",
            "chat_template_syntax",
        ];
        match compile(&source).and_then(|template| template.render(&user("Hello"), true)) {
            Err(error) => {
                assert!(codes.contains(&error.code()), "{name}: {error}");
                assert!(error.to_string().len() < 2000, "{name}");
            }
            Ok(text) => {
                assert!(text.len() < 2 << 20, "{name}");
                harmless.push(name);
            }
        }
        eprintln!("{name}: {:?}", begun.elapsed());
        // Three waits at most: for compiling, the trial and the text.
        assert!(begun.elapsed() < Duration::from_secs(15), "{name}: {:?}", begun.elapsed());
        assert_eq!(healthy.render(&user(name), true).unwrap(), name);
    }
    eprintln!("{harmless:?}");
}

/// The demo model with another template.
fn model_with(template: &str, directory: &Path) -> PathBuf {
    demo_with(&[("tokenizer.chat_template", template)], &[], directory)
}

#[test]
fn a_hostile_template_costs_its_request_and_not_the_server() {
    let directory = tempfile::tempdir().unwrap();
    // Harmless until somebody says the word.
    let template = format!(
        "{{% if messages[0].content == 'boom' %}}{}{{% endif %}}{{{{ messages[0].content }}}}",
        doubling("ns.x ~ ns.x")
    );
    let model = model_with(&template, directory.path());
    let model = model.to_str().unwrap();
    let checked = ruvllm(&["serve", "--check", "-m", model]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    let server = Serving::start(&["-m", model]);
    let ask = |text: &str| {
        let message = format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}], \"max_tokens\": 4}}"
        );
        server.post("/v1/chat/completions", &message)
    };
    for _ in 0..3 {
        let answer = ask("boom");
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
        // By its memory, or, where the machine is slow, by its time.
        let codes = ["chat_template_limit", "chat_template_timeout"];
        assert!(codes.iter().any(|code| answer.contains(code)), "{answer}");
        let answer = ask("Once upon a time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn a_template_that_renders_nothing_at_all_is_found_by_the_check() {
    let directory = tempfile::tempdir().unwrap();
    let model = model_with(&doubling("ns.x ~ ns.x"), directory.path());
    let checked = ruvllm(&["serve", "--check", "-m", model.to_str().unwrap()]);
    assert_ne!(checked.code, Some(0));
    assert!(checked.stderr.contains("template"), "{}", checked.stderr);
}

#[test]
fn conversations_with_tools_are_rendered_by_the_template_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let default = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let tool_use = "{% for tool in tools %}<{{ tool.function.name }}>{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}";
    let texts =
        [("tokenizer.chat_template", default), ("tokenizer.chat_template.tool_use", tool_use)];
    let model = demo_with(&texts, &[], directory.path());
    let server = Serving::start(&["-m", model.to_str().unwrap(), "--log-prompts"]);
    let prompt = |messages: serde_json::Value, tools: serde_json::Value| {
        let body = serde_json::json!({"messages": messages, "tools": tools, "max_tokens": 1});
        let answer = server.post("/v1/chat/completions", &body.to_string());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let prompt = |line: &String| {
            let event: serde_json::Value = serde_json::from_str(line).ok()?;
            event["prompt"].as_str().map(str::to_owned)
        };
        server.log.iter().find_map(|line| prompt(&line)).unwrap()
    };
    let user = serde_json::json!({"role": "user", "content": "Go."});
    let tools =
        serde_json::json!([{"type": "function", "function": {"name": "walk", "parameters": {}}}]);
    let call = serde_json::json!({"id": "1", "type": "function", "function": {"name": "walk", "arguments": "{}"}});
    let called = serde_json::json!([user, {"role": "assistant", "content": null, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "There."}]);
    assert_eq!(prompt(serde_json::json!([user]), serde_json::json!([])), "<user>Go.");
    assert_eq!(prompt(serde_json::json!([user]), tools.clone()), "<walk><user>Go.");
    let call = r#"<tool_call>{"name": "walk", "arguments": {}}</tool_call>"#;
    assert_eq!(
        prompt(called.clone(), tools),
        format!("<walk><user>Go.<assistant>{call}<tool>There.")
    );
    // The other has no place for calls, so they are told in texts.
    assert_eq!(
        prompt(called, serde_json::json!([])),
        r#"<user>Go.<assistant>{"name":"walk","arguments":{}}<user>{"function":"walk","result":"There."}"#
    );
}

#[test]
fn published_templates_give_the_texts_of_the_reference() {
    let own = repository().join("target/clients/bin/python");
    let python = if own.exists() { own } else { "python3".into() };
    let installed = "import importlib.metadata, jinja2; importlib.metadata.version('axolotl')";
    let there = Command::new(&python).args(["-c", installed]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        // Without a word by which `.ci/run` forbids that other tests are skipped.
        eprintln!(
            "skipped: no axolotl package (tests/clients/templates.txt), or no jinja2 beside it (requirements.txt)"
        );
        return;
    }
    let script = repository().join("tests/scripts/published_templates.py");
    // No cache of the other script may be written beside it.
    let mut compare = Command::new(&python);
    compare.arg("-B").arg(script).arg(env!("CARGO_BIN_EXE_ruvllm"));
    let Output { status, stdout, stderr } = compare.output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{stdout}\n{stderr}");
}
