//! The demo model, which was trained for 512 tokens, in longer contexts.

use crate::parity::{expected, fixtures, model};
use crate::program::{Run, ruvllm};
use std::path::Path;

fn measure(model: &Path, options: &[&str]) -> Run {
    let text = fixtures().join("tales.txt").display().to_string();
    let model = model.display().to_string();
    ruvllm(&[&["perplexity", "--json", "-f", &text, "-m", &model], options].concat())
}

fn perplexity(model: &Path, options: &[&str]) -> f64 {
    let run = measure(model, options);
    let result: serde_json::Value = serde_json::from_str(run.text()).expect("JSON");
    result["perplexity"].as_f64().expect("a perplexity")
}

#[test]
fn perplexity_in_stretched_contexts_equals_llama_cpps() {
    let mut methods = std::collections::BTreeSet::new();
    for case in expected("rope_scaling.json") {
        let method = case["method"].as_str().expect("a method");
        let context = case["context"].as_u64().expect("a context").to_string();
        let model = model(case["format"].as_str().expect("a format"));
        let found = perplexity(&model, &["-c", &context, "--rope-scaling", method]);
        let wanted = case["perplexity"].as_f64().expect("a perplexity");
        println!("{method} in {context}: {found:.4} against {wanted:.4}");
        assert!(
            (found / wanted - 1.0).abs() < 2e-3,
            "{method} in {context}: {found}, not {wanted}"
        );
        methods.insert(method.to_owned());
    }
    assert!(methods.iter().eq(["linear", "ntk", "yarn"]));
}

/// Only the second half of a context is scored: here, all that lies beyond the trained one.
#[test]
fn twice_the_trained_context_costs_little_with_yarn_and_llama3() {
    let model = model("Q8_0");
    let trained = perplexity(&model, &["-c", "512"]);
    for method in ["yarn", "llama3"] {
        let stretched = perplexity(&model, &["-c", "1024", "--rope-scaling", method]);
        println!("{method}: {stretched:.4} against {trained:.4}");
        assert!(stretched < 1.1 * trained, "{method}: {stretched} against {trained}");
    }
}

#[test]
fn a_longer_context_has_to_be_asked_for() {
    let flags = ["--rope-scaling", "--rope-factor", "yarn", "1024", "512"];
    measure(&model("Q8_0"), &["-c", "1024"]).refused(&flags);
    for command in ["run", "bench"] {
        ruvllm(&[command, "-c", "1024"]).refused(&flags);
        ruvllm(&[command, "-c", "1024", "--rope-scaling", "none"]).refused(&flags);
        let small = ["--rope-scaling", "yarn", "--rope-factor", "1.5"];
        ruvllm(&[&[command, "-c", "1024"], &small[..]].concat()).refused(&["rope factor", "1.5"]);
    }
    let factor = ["run", "--rope-factor", "2"];
    assert_eq!(ruvllm(&factor).code, Some(2));
    ruvllm(&[&factor[..], &["--rope-scaling", "none"]].concat()).refused(&["--rope-scaling yarn"]);
}

#[test]
fn text_goes_on_past_the_trained_context() {
    let prompt = "The fox ran home. ".repeat(150);
    let args = ["run", "--raw", "--ignore-eos", "-n", "16", "--stats", "json", &prompt];
    ruvllm(&args).refused(&["512", "context"]);
    let run = ruvllm(&[&args[..], &["--rope-scaling", "yarn", "--rope-factor", "2"]].concat());
    run.text();
    let stats = run.stats();
    assert!(stats["prompt_tokens"].as_u64() > Some(512), "{stats}");
    assert_eq!(stats["generated_tokens"], 16);
}
