//! The demo model in every weight type: its matrices dequantised, which is exact in F32, and
//! quantised anew. The reference program is run on the same files, which
//! `cargo run -p ruvllm-tests --example demo_files -- DIR` writes.

use candle_core::quantized::gguf_file::{Content, Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result};
use std::fs::File;
use std::path::Path;

/// The weight types and what to call their files. Rows of 704 elements are no whole blocks of
/// `Q4_K`, `Q5_K` and `Q6_K`; the matrix that has them is `Q8_0` in those files.
pub(crate) const TYPES: [(&str, GgmlDType); 11] = [
    ("F32", GgmlDType::F32),
    ("F16", GgmlDType::F16),
    ("BF16", GgmlDType::BF16),
    ("Q8_0", GgmlDType::Q8_0),
    ("Q4_0", GgmlDType::Q4_0),
    ("Q4_1", GgmlDType::Q4_1),
    ("Q5_0", GgmlDType::Q5_0),
    ("Q5_1", GgmlDType::Q5_1),
    ("Q4_K", GgmlDType::Q4K),
    ("Q5_K", GgmlDType::Q5K),
    ("Q6_K", GgmlDType::Q6K),
];

/// Writes the model of the file `from` to the file `to` with all matrices of one type; of its own,
/// `Q8_0`, as it is.
pub(crate) fn convert(from: &Path, to: &Path, matrices: GgmlDType) -> Result<()> {
    if matrices == GgmlDType::Q8_0 {
        std::fs::copy(from, to)?;
        return Ok(());
    }
    let mut reader = File::open(from)?;
    let content = Content::read(&mut reader)?;
    let mut names: Vec<&String> = content.tensor_infos.keys().collect();
    names.sort();
    let tensors = names
        .into_iter()
        .map(|name| {
            let tensor = content.tensor(&mut reader, name, &Device::Cpu)?;
            let values = tensor.dequantize(&Device::Cpu)?;
            let dtype = match values.dims() {
                [_, cols] if cols % matrices.block_size() == 0 => matrices,
                [_, _] => GgmlDType::Q8_0,
                _ => GgmlDType::F32,
            };
            Ok((name.as_str(), QTensor::quantize(&values, dtype)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let metadata: Vec<(&str, &Value)> =
        content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    write(&mut File::create(to)?, &metadata, &tensors)
}
