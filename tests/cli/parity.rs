//! Greedy text against llama.cpp's on the same weights in three formats.
//!
//! The expected texts were written by `tests/scripts/greedy_reference.py`. The F32 and F16 files are
//! made here as there: every matrix of the Q8_0 model dequantised, which is exact in F32.

use crate::program::ruvllm;
use candle_core::quantized::gguf_file::{Content, Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result};
use std::fs::File;
use std::path::Path;

fn convert(to: &Path, matrices: GgmlDType) -> Result<()> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/tales-q8_0.gguf");
    let mut reader = File::open(demo)?;
    let content = Content::read(&mut reader)?;
    let mut names: Vec<&String> = content.tensor_infos.keys().collect();
    names.sort();
    let tensors = names
        .into_iter()
        .map(|name| {
            let tensor = content.tensor(&mut reader, name, &Device::Cpu)?;
            let values = tensor.dequantize(&Device::Cpu)?;
            let dtype = if values.rank() == 2 { matrices } else { GgmlDType::F32 };
            Ok((name.as_str(), QTensor::quantize(&values, dtype)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let metadata: Vec<(&str, &Value)> =
        content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    write(&mut File::create(to)?, &metadata, &tensors)
}

#[test]
fn greedy_text_equals_llama_cpps_in_f32_f16_and_q8_0() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/greedy/expected.json");
    let fixture: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (f32, f16) = (dir.path().join("f32.gguf"), dir.path().join("f16.gguf"));
    convert(&f32, GgmlDType::F32).unwrap();
    convert(&f16, GgmlDType::F16).unwrap();
    let mut formats = std::collections::BTreeSet::new();
    for case in fixture["cases"].as_array().unwrap() {
        let format = case["format"].as_str().unwrap();
        let prompt = case["prompt"].as_str().unwrap();
        let model = match format {
            "F32" => Some(&f32),
            "F16" => Some(&f16),
            "Q8_0" => None,
            other => panic!("unknown format {other}"),
        };
        let greedy = |tokens: u64| {
            let tokens = tokens.to_string();
            let mut args =
                vec!["run", "--raw", "--ignore-eos", "--temperature", "0", "-n", &tokens, prompt];
            if let Some(path) = model {
                args.extend(["-m", path.to_str().unwrap()]);
            }
            ruvllm(&args).text().to_owned()
        };
        // The reference tool may end without printing its last token, so its text of `n` tokens
        // lies between ours of 64 and ours of `n`.
        let expected = case["text"].as_str().unwrap();
        let n = case["n"].as_u64().unwrap();
        assert!(n > 64);
        assert!(expected.starts_with(&greedy(64)), "{format}: {prompt}: {expected}");
        assert!(greedy(n).starts_with(expected), "{format}: {prompt}: {expected}");
        formats.insert(format);
    }
    assert_eq!(formats.len(), 3);
}
