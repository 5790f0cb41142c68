//! The demo model in every weight type: its matrices dequantised, which is exact in F32, and
//! quantised anew. The reference program is run on the same files, which
//! `cargo run -p ruvllm-tests --example demo_files -- DIR` writes.

use ruvllm_abi::DType;
use ruvllm_engine::gguf::{self, GgufFile, TensorView};
use ruvllm_tests::Tensor;
use std::error::Error;
use std::fs::File;
use std::path::Path;

/// The weight types and what to call their files. Rows of 704 elements are no whole blocks of
/// `Q4_K`, `Q5_K` and `Q6_K`; the matrix that has them is `Q8_0` in those files.
pub(crate) const TYPES: [(&str, DType); 11] = [
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("Q8_0", DType::Q8_0),
    ("Q4_0", DType::Q4_0),
    ("Q4_1", DType::Q4_1),
    ("Q5_0", DType::Q5_0),
    ("Q5_1", DType::Q5_1),
    ("Q4_K", DType::Q4_K),
    ("Q5_K", DType::Q5_K),
    ("Q6_K", DType::Q6_K),
];

/// Writes the model of the file `from` to the file `to` with all matrices of one type; of its own,
/// `Q8_0`, as it is.
pub(crate) fn convert(from: &Path, to: &Path, matrices: DType) -> Result<(), Box<dyn Error>> {
    if matrices == DType::Q8_0 {
        std::fs::copy(from, to)?;
        return Ok(());
    }
    let model = GgufFile::open(from)?;
    let converted: Vec<(&str, Tensor)> = model
        .tensors()
        .into_iter()
        .map(|TensorView { name, dtype, shape, bytes }| {
            let tensor = Tensor { dtype, shape: shape.to_vec(), bytes: bytes.to_vec() };
            let dtype = match *shape {
                [_, cols] if matrices.bytes_for(cols).is_some() => matrices,
                [_, _] => DType::Q8_0,
                _ => DType::F32,
            };
            (name, Tensor::new(dtype, shape, &tensor.values()))
        })
        .collect();
    let tensors: Vec<_> = converted
        .iter()
        .map(|(name, Tensor { dtype, shape, bytes })| TensorView {
            name,
            dtype: *dtype,
            shape,
            bytes,
        })
        .collect();
    let metadata = model.metadata().iter().map(|(key, value)| (key.as_str(), value));
    Ok(gguf::write(&mut File::create(to)?, metadata, &tensors)?)
}
