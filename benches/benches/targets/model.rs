//! A file of the size and shape of a model with 7 billion weights in Q4_0, as random as weights: how long it takes to
//! load does not depend on them.

use half::f16;
use ruvllm::engine::gguf::{self, TensorView, Value};
use ruvllm_abi::DType;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAYERS: usize = 32;
const DIM: usize = 4096;
const FFN: usize = 11_008;
const HEADS: u32 = 32;
const VOCAB: usize = 32_000;

/// Room that must be there on disk: the file, and some.
const DISK_BYTES: u64 = 5 << 30;
/// Memory that must be there: the file in the system's cache, and its weights rearranged.
const MEMORY_BYTES: u64 = 10 << 30;

/// The file, in a directory that goes with it.
pub(crate) struct ModelFile {
    directory: tempfile::TempDir,
}

impl ModelFile {
    /// Writes the file.
    ///
    /// # Errors
    /// Why it cannot be: a sentence.
    pub(crate) fn write() -> Result<ModelFile, String> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let place = directory.path().display();
        let short = |what: &str, bytes: u64, needed: u64| match bytes < needed {
            true => Err(format!(
                "{} MB of {what} are free and {} are needed",
                bytes >> 20,
                needed >> 20
            )),
            false => Ok(()),
        };
        let disk = free_disk(directory.path())
            .ok_or_else(|| format!("`df {place}` does not tell what is free"))?;
        short(&format!("disk at {place}"), disk, DISK_BYTES)?;
        let memory = free_memory().ok_or("this system does not tell how much memory is free")?;
        short("memory", memory, MEMORY_BYTES)?;
        let file = ModelFile { directory };
        file.fill().map_err(|e| format!("{}: {e}", file.path().display()))?;
        Ok(file)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("7b-q4_0.gguf")
    }

    fn fill(&self) -> std::io::Result<()> {
        let mut out = BufWriter::new(File::create(self.path())?);
        let metadata = metadata();
        let tensors = tensors();
        // All tensors show the same bytes: the largest is as long as they are.
        let blocks = random_blocks(VOCAB * DIM);
        let ones: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), DIM).flatten().collect();
        let views: Vec<TensorView<'_>> = tensors
            .iter()
            .map(|(name, shape)| {
                let (dtype, bytes) = match shape.len() {
                    1 => (DType::F32, &ones),
                    _ => (DType::Q4_0, &blocks),
                };
                let size = dtype.bytes_for(shape.iter().product()).unwrap_or(0);
                TensorView { name, dtype, shape, bytes: &bytes[..size] }
            })
            .collect();
        gguf::write(&mut out, metadata.iter().map(|(key, value)| (*key, value)), &views)?;
        out.into_inner()?.sync_all()
    }
}

/// Blocks of Q4_0 for so many numbers, of a deviation of about 0.02.
fn random_blocks(numbers: usize) -> Vec<u8> {
    let mut state = 1u64;
    let blocks = (0..numbers / 32).flat_map(|_| {
        let mut block = [0; 18];
        block[..2].copy_from_slice(&f16::from_f32(0.02 / 4.6).to_le_bytes());
        for bytes in block[2..].chunks_mut(8) {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.copy_from_slice(&state.to_le_bytes());
        }
        block
    });
    blocks.collect()
}

/// Names and shapes, outermost dimension first.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![VOCAB, DIM]),
        ("output_norm.weight".to_owned(), vec![DIM]),
        ("output.weight".to_owned(), vec![VOCAB, DIM]),
    ];
    for layer in 0..LAYERS {
        let of_layer: [(&str, &[usize]); 9] = [
            ("attn_norm", &[DIM]),
            ("attn_q", &[DIM, DIM]),
            ("attn_k", &[DIM, DIM]),
            ("attn_v", &[DIM, DIM]),
            ("attn_output", &[DIM, DIM]),
            ("ffn_norm", &[DIM]),
            ("ffn_gate", &[FFN, DIM]),
            ("ffn_up", &[FFN, DIM]),
            ("ffn_down", &[DIM, FFN]),
        ];
        let named = |(name, shape): (&str, &[usize])| {
            (format!("blk.{layer}.{name}.weight"), shape.to_vec())
        };
        tensors.extend(of_layer.map(named));
    }
    tensors
}

/// That of the family `llama`, with a vocabulary of SentencePiece's form: every byte has a token, and the others are
/// words that do not matter.
fn metadata() -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let bytes = tokens.len();
    tokens.extend((bytes..VOCAB).map(|i| format!("\u{2581}w{i}")));
    let kind = |i: usize| match i {
        0 => 2,
        1 | 2 => 3,
        _ if i < bytes => 6,
        _ => 1,
    };
    let array = |value: &dyn Fn(usize) -> Value| Value::Array((0..VOCAB).map(value).collect());
    vec![
        ("general.architecture", text("llama")),
        ("general.name", text("7B shape, random weights")),
        ("general.file_type", Value::U32(2)),
        ("llama.context_length", Value::U32(4096)),
        ("llama.embedding_length", Value::U32(DIM as u32)),
        ("llama.block_count", Value::U32(LAYERS as u32)),
        ("llama.feed_forward_length", Value::U32(FFN as u32)),
        ("llama.attention.head_count", Value::U32(HEADS)),
        ("llama.attention.head_count_kv", Value::U32(HEADS)),
        ("llama.rope.dimension_count", Value::U32(DIM as u32 / HEADS)),
        ("llama.rope.freq_base", Value::F32(1e4)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", array(&|i| Value::String(tokens[i].clone()))),
        ("tokenizer.ggml.scores", array(&|i| Value::F32(-(i as f32)))),
        ("tokenizer.ggml.token_type", array(&|i| Value::I32(kind(i)))),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
    ]
}

/// Bytes that are free where a directory is; `None` where `df` does not say.
fn free_disk(directory: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(directory).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kib: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib << 10)
}

/// Bytes of memory that programs can have; `None` where the system does not say.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
