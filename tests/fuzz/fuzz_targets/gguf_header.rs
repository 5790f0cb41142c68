//! GGUF: any bytes are refused or have metadata and tensors that lie in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_engine::gguf::{GgufFile, TensorView};

fuzz_target!(|bytes: &[u8]| {
    // SAFETY: the reader wants bytes that live as long as it does, and says 'static for want of a
    // lifetime. The file and all that borrows from it are gone at the end of this call, before the
    // bytes are.
    let bytes: &'static [u8] = unsafe { std::mem::transmute(bytes) };
    if let Ok(file) = GgufFile::from_static(bytes, "fuzz") {
        for TensorView { name, dtype, shape, bytes } in file.tensors() {
            let elems: usize = shape.iter().product();
            assert_eq!(dtype.bytes_for(elems), Some(bytes.len()), "{name} {dtype} {shape:?}");
        }
    }
});
