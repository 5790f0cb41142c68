//! The official clients and an evaluation harness, unchanged. They are used where they are installed: `target/clients` has a
//! virtual environment with `tests/clients/requirements.txt` and `tests/clients/lm-eval.txt`, and the `node_modules` of
//! `tests/clients/package.json`, as `.ci/run` makes them; a system-wide Python package will do, too.

use std::path::Path;
use std::process::{Command, Output};

use ruvllm_engine::{Logprobs, SessionOptions};
use ruvllm_server::ApiKey;
use serde_json::{Value, json};

use crate::common::{Service, repository, served};
use crate::echo::deterministic;
use crate::structured::{HERMES, with_template_and};

/// Runs a client's script against a server with a key.
fn run(mut client: Command, script: &str) {
    let (secret, entry) = ApiKey::generate("tester").unwrap();
    let service = with_template_and(HERMES, &["--api-key", &entry.to_string()]);
    client.arg(repository().join("tests/clients").join(script));
    let Output { status, stdout, stderr } =
        client.arg(service.url("/v1")).arg(secret).output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{stdout}\n{stderr}");
}

pub(crate) fn works(client: &mut Command) -> bool {
    client.output().is_ok_and(|output| output.status.success())
}

/// Python with the packages of `tests/clients/requirements.txt`.
fn python() -> Command {
    let own = repository().join("target/clients/bin/python");
    Command::new(if own.exists() { own.as_path() } else { Path::new("python3") })
}

/// Node with the packages of `tests/clients/package.json`.
pub(crate) fn node() -> Command {
    let mut node = Command::new("node");
    node.env("NODE_PATH", repository().join("target/clients/node_modules"));
    node
}

#[test]
fn the_official_python_client_works() {
    if !works(python().args(["-c", "import openai"])) {
        eprintln!("skipped: no Python with the openai package (tests/clients/requirements.txt)");
        return;
    }
    run(python(), "client.py");
}

#[test]
fn anthropics_python_client_works() {
    if !works(python().args(["-c", "import anthropic"])) {
        eprintln!("skipped: no Python with the anthropic package (tests/clients/requirements.txt)");
        return;
    }
    run(python(), "anthropic_client.py");
}

#[test]
fn the_official_node_client_works() {
    if !works(node().args(["-e", "require('openai')"])) {
        eprintln!("skipped: no Node with the openai package (tests/clients/package.json)");
        return;
    }
    run(node(), "client.cjs");
}

/// A task of multiple choice, with contexts that several choices share.
fn task(dir: &Path) {
    let contexts = [
        "Once upon a time, there was a little girl named Wren. She loved to",
        "One winter the old baker fell very ill. \"Only one thing can help,\" said the",
        "The little fox walked down to the river and looked at the",
    ];
    // More than a block of tokens of the prefix cache.
    let story = "Once upon a time, there was a little girl named Wren. She loved to dance. Wren had a picture \
         book that she loved more than anything. One morning the picture book was gone. She looked under the \
         bed and behind the door, but found only dust.";
    let choices = [["dance in the rain.", "doctor."], ["doctor.", "water."], ["water.", "sky."]];
    let docs = contexts.iter().zip(choices).map(|(context, choices)| {
        json!({"context": format!("{story} {context}"), "choices": choices, "answer": 0})
            .to_string()
    });
    let data = dir.join("tales.jsonl");
    std::fs::write(&data, docs.collect::<Vec<_>>().join("\n")).unwrap();
    let task = format!(
        "task: tales\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    validation: {}\n{}",
        data.display(),
        "validation_split: validation\noutput_type: multiple_choice\ndoc_to_text: '{{context}}'
doc_to_choice: '{{choices}}'\ndoc_to_target: answer\nmetric_list:\n  - metric: acc\n  - metric: acc_norm\n",
    );
    std::fs::write(dir.join("tales.yaml"), task).unwrap();
}

#[test]
fn the_evaluation_harness_gives_the_log_likelihoods_of_the_library() {
    if !works(python().args(["-c", "import lm_eval, aiohttp, tenacity"])) {
        eprintln!("skipped: no lm_eval package (tests/clients/lm-eval.txt)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    task(dir.path());
    let engine = deterministic();
    let service = Service::of(served(engine.clone()), &[]);
    // In batches, two of them at a time.
    let out = dir.path().join("out");
    let model = format!(
        "model=tales-q8_0,base_url={},num_concurrent=2,max_length=256",
        service.url("/v1/completions")
    );
    let mut harness = python();
    harness.args(["-m", "lm_eval", "--model", "local-completions", "--model_args", &model]);
    harness.args(["--tasks", "tales", "--batch_size", "4", "--log_samples"]);
    harness.arg("--include_path").arg(dir.path()).arg("--output_path").arg(&out);
    harness.env("HF_HOME", dir.path().join("hub")).env("HF_DATASETS_OFFLINE", "1");
    harness.env("HF_HUB_OFFLINE", "1").current_dir(dir.path());
    let Output { status, stdout, stderr } = harness.output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{stdout}\n{stderr}");
    let answered = answered(&out);
    assert_eq!(answered.len(), 6);
    for (context, continuation, told) in answered {
        let tokenizer = engine.model().tokenizer();
        let whole = tokenizer.encode(&format!("{context}{continuation}"), false).unwrap();
        let from = tokenizer.encode(&context, false).unwrap().len();
        let mut expected = 0.0_f64;
        let session = SessionOptions { scope: None, ..SessionOptions::default() };
        let each = &mut |at: usize, logits: &[f32]| {
            if at + 1 >= from {
                expected += f64::from(Logprobs::of(logits, whole[at + 1], 0).chosen);
            }
        };
        engine.session_with(&session).evaluate(&whole[..whole.len() - 1], 0, each).unwrap();
        // To the last bit, though the harness asks for several at once and the cache holds their beginnings.
        assert_eq!(told, expected, "{continuation:?}");
    }
    let cached = service.metric("ruvllm_tokens_total{kind=\"cached\"}");
    assert!(cached > 0.0, "no context was found in the prefix cache");
}

/// The contexts, continuations and log-likelihoods in what the harness wrote.
fn answered(out: &Path) -> Vec<(String, String, f64)> {
    let mut files = vec![out.to_owned()];
    let mut answered = Vec::new();
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            for line in std::fs::read_to_string(path).unwrap().lines() {
                let sample: Value = serde_json::from_str(line).unwrap();
                for (at, told) in sample["filtered_resps"].as_array().unwrap().iter().enumerate() {
                    let arguments = &sample["arguments"][format!("gen_args_{at}")];
                    let text = |name: &str| arguments[name].as_str().unwrap().to_owned();
                    let told =
                        told[0].as_str().map(str::to_owned).unwrap_or_else(|| told[0].to_string());
                    answered.push((text("arg_0"), text("arg_1"), told.parse().unwrap()));
                }
            }
        }
    }
    answered
}
