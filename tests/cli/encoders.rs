//! Encoders of texts from packs, beside the model.

#[path = "../../runtime/graph/tests/graph/tiny.rs"]
mod tiny;

use crate::program::ruvllm;
use crate::serving::Serving;
use ruvllm_abi::DType;
use ruvllm_manifest::GraphEmbedding;
use ruvllm_tests::graphs::{sentences, tokenizer};
use ruvllm_tests::{PackBuilder, TestPack, onnx};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

fn pack(change: impl FnOnce(&mut Value), graph: onnx::Graph) -> TestPack {
    let mut entry = sentences("mean");
    change(&mut entry);
    let entry = ruvllm_manifest::GraphEntry::parse(entry.to_string().as_bytes()).unwrap();
    PackBuilder::new().graph(entry, graph.model(), tokenizer().into_bytes()).build()
}

fn options(pack: &TestPack, state: &Path) -> [String; 8] {
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let model = format!("sentences={}", path(&pack.path()));
    [
        "--kernels",
        "native",
        "--trust",
        &path(&pack.policy_file()),
        "--state-dir",
        &path(state),
        "--embedding-model",
        &model,
    ]
    .map(str::to_owned)
}

/// The JSON of an answer, which must be a success.
fn json(answer: &str) -> Value {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

/// The vector of a text.
fn embedding(server: &Serving, model: &str, text: &str) -> Vec<f64> {
    let body = format!(r#"{{"model": "{model}", "input": "{text}"}}"#);
    let body = json(&server.post("/v1/embeddings", &body));
    let vector = body["data"][0]["embedding"].as_array().unwrap();
    vector.iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn an_encoder_of_a_pack_answers_under_its_own_name() {
    let state = tempfile::tempdir().unwrap();
    let pack = pack(|_| (), onnx::encoder());
    let options = options(&pack, state.path());
    let server = Serving::start(&options.each_ref().map(String::as_str));
    let ask = |text: &str| embedding(&server, "sentences", text);
    let (fox, again, sea) = (ask("The fox runs."), ask("the FOX runs."), ask("a ship, the sea"));
    assert_eq!((fox.len(), &fox), (16, &again));
    let cosine: f64 = fox.iter().zip(&sea).map(|(a, b)| a * b).sum();
    assert!(cosine < 0.999, "{cosine}");
}

#[test]
fn a_quantised_gguf_model_of_a_pack_is_an_encoder_like_an_onnx_file_beside_it() {
    let state = tempfile::tempdir().unwrap();
    let tiny = tiny::Tiny::new(DType::Q8_0);
    let entry = |json: Value| ruvllm_manifest::GraphEntry::parse(json.to_string().as_bytes());
    let onnx = entry(sentences("mean")).unwrap();
    let GraphEmbedding { tokenizer: file, .. } = onnx.embedding.clone().unwrap();
    let mut gguf = tiny.entry();
    gguf.embedding = Some(GraphEmbedding {
        tokenizer: ruvllm_manifest::GraphFile {
            path: "graphs/words.json".parse().unwrap(),
            ..file
        },
        pooling: "none".parse().unwrap(),
        normalize: true,
        max_tokens: 8,
    });
    let pack = PackBuilder::new().graph(onnx, onnx::encoder().model(), tokenizer().into_bytes());
    let pack = pack.graph(gguf, tiny.file(), tokenizer().into_bytes()).build();
    let path = pack.path().to_str().unwrap().to_owned();
    let models = ["encoder", "tiny"].map(|graph| format!("my-{graph}={path}#{graph}"));
    let mut options = options(&pack, state.path()).to_vec();
    options.truncate(6);
    options.extend(models.into_iter().flat_map(|model| ["--embedding-model".to_owned(), model]));
    let server = Serving::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream
        .write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut listed = String::new();
    stream.read_to_string(&mut listed).unwrap();
    let listed = json(&listed);
    let names =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>()[1..], ["my-encoder", "my-tiny"], "{listed}");
    // [CLS] the fox runs . [SEP]
    let mean = tiny.mean(&[2, 5, 6, 8, 14, 3]);
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    let vector = embedding(&server, "my-tiny", "The fox runs.");
    assert_eq!(vector.len(), tiny::WIDTH);
    assert!(vector.iter().zip(&mean).all(|(x, y)| (x - y / length).abs() < 1e-5), "{vector:?}");
    assert_eq!(embedding(&server, "my-encoder", "The fox runs.").len(), 16);
}

#[test]
fn a_pack_of_graphs_alone_says_what_it_is_for_and_explains_its_graphs() {
    let state = tempfile::tempdir().unwrap();
    let right = pack(|_| (), onnx::encoder());
    let run = |command: &[&str], pack: &TestPack| {
        let paths = [pack.path(), pack.policy_file(), state.path().to_owned()];
        let [path, trust, state] = paths.each_ref().map(|path| path.to_str().unwrap());
        let options = ["--pack", path, "--trust", trust, "--state-dir", state];
        ruvllm(&[command, &options].concat())
    };
    let list = run(&["kernels", "list"], &right);
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    for part in ["holds no kernels", "(encoder)", "serve --embedding-model"] {
        assert!(list.stderr.contains(part), "no {part:?} in: {}", list.stderr);
    }
    let explained = run(&["kernels", "explain", "encoder"], &right);
    for part in ["graph encoder of test-kernels 1.0.0", "input_ids: i64[", "  admitted: "] {
        assert!(explained.text().contains(part), "no {part:?} in: {}", explained.stdout);
    }
    let wrong =
        pack(|entry| entry["checks"][0]["outputs"][0]["values"][0] = 5.0.into(), onnx::encoder());
    let explained = run(&["kernels", "explain", "encoder", "--json"], &wrong);
    let explained: Value = serde_json::from_str(explained.text()).unwrap();
    assert_eq!(explained["admitted"], false, "{explained}");
    assert!(explained["reason"].as_str().unwrap().contains("hidden is "), "{explained}");
    let explained = run(&["kernels", "explain", "encoder"], &wrong);
    let reason: Vec<&str> =
        explained.text().lines().skip_while(|line| !line.contains("not admitted")).collect();
    assert_eq!(reason[0], "  not admitted: graph `encoder` is refused:", "{}", explained.stdout);
    assert!(reason[1].starts_with("    checks[0].outputs[0]: hidden is "), "{}", explained.stdout);
    run(&["kernels", "explain", "nothing"], &right).refused(&["there are: ", "encoder"]);
    let path = right.path();
    let stage = ruvllm(&["kernels", "stage", path.to_str().unwrap()]);
    stage.refused(&["test-kernels holds no kernels to stage", "--embedding-model"]);
}

#[test]
fn kernels_compute_graphs_of_their_pack_where_the_policy_grants_it() {
    let (entry, module) = ruvllm_tests::graphs::kernel("");
    let graph = ruvllm_tests::graphs::entry("mlp");
    let graph = ruvllm_manifest::GraphEntry::parse(graph.to_string().as_bytes()).unwrap();
    let pack = PackBuilder::new().entry(entry, module);
    let pack = pack.graph(graph, onnx::mlp().model(), Vec::new()).build();
    let trust = pack.policy_file();
    let explain = |operation: &str| {
        let paths = [pack.path(), trust.clone()];
        let [path, trust] = paths.each_ref().map(|path| path.to_str().unwrap());
        ruvllm(&["kernels", "explain", operation, "--no-cache", "--pack", path, "--trust", trust])
    };
    explain("classify").refused(&["wasi_nn_not_granted", "wasi_nn = true"]);
    let policy = std::fs::read_to_string(&trust).unwrap();
    std::fs::write(&trust, policy + "wasi_nn = true\n").unwrap();
    let explained = explain("classify");
    assert!(explained.text().contains("classify"), "{}", explained.stdout);
    let explained = explain("mlp");
    assert!(explained.text().contains("kernels   classify"), "{}", explained.stdout);
}

#[test]
fn what_is_not_admitted_is_not_served() {
    let state = tempfile::tempdir().unwrap();
    let refused = |pack: &TestPack, parts: &[&str]| {
        let options = options(pack, state.path());
        let line: Vec<&str> = ["serve", "--listen", "127.0.0.1:0"]
            .into_iter()
            .chain(options.iter().map(String::as_str))
            .collect();
        ruvllm(&line).refused(parts);
    };
    let wrong =
        pack(|entry| entry["checks"][0]["outputs"][0]["values"][0] = 5.0.into(), onnx::encoder());
    refused(&wrong, &["--embedding-model sentences=", "graph_mismatch"]);
    let mut graph = onnx::encoder();
    graph.nodes.push(onnx::node("Relu", &["nobody"], &["n"], &[]));
    refused(&pack(|_| (), graph), &["onnx_missing_weight"]);
    let unsigned = pack(|_| (), onnx::encoder());
    std::fs::remove_file(unsigned.path().join("kernels.json.sig")).unwrap();
    refused(&unsigned, &["signature_missing"]);
}

/// The server waits for the trust policy, which it reads for its encoders first.
#[cfg(unix)]
#[test]
fn a_hangup_while_encoders_are_opened_does_not_end_the_server() {
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let trust = dir.path().join("trust.toml");
    assert!(Command::new("mkfifo").arg(&trust).status().unwrap().success());
    let mut server = Command::new(env!("CARGO_BIN_EXE_ruvllm"))
        .args(["serve", "--listen", "127.0.0.1:0", "--embedding-model", "sentences=nowhere"])
        .arg("--trust")
        .arg(&trust)
        .arg("--state-dir")
        .arg(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut writer = std::fs::File::options().write(true).open(&trust).unwrap();
    let killed = Command::new("kill").args(["-HUP", &server.id().to_string()]).status().unwrap();
    assert!(killed.success());
    std::thread::sleep(std::time::Duration::from_millis(200));
    writer.write_all(b"no policy").unwrap();
    drop(writer);
    // Its own end, because of what it read.
    assert_eq!(server.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("trust.toml"), "{said}");
}
