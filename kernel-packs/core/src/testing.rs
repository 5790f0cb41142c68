//! Inputs and comparisons for the tests.

extern crate std;
use std::vec;
use std::vec::Vec;

use ruvllm_kernel_sdk::{Call, KernelDescriptor, Memory, Region, Scratch};

/// `n` values in `-magnitude..magnitude`, the same for the same seed.
pub(crate) fn noise(n: usize, magnitude: f32, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..n).map(|_| ((next() >> 8) as f32 / 8_388_608.0 - 1.0) * magnitude).collect()
}

/// Calls `f` with the scratch that every call has.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch<'_>) -> R) -> R {
    const AT: usize = 64;
    let size = ruvllm_kernel_sdk::abi::SCRATCH_BYTES;
    let mut bytes = vec![0; 2 * AT + size];
    let skip = bytes.as_ptr().align_offset(AT);
    let memory = &mut bytes[skip..];
    let desc =
        KernelDescriptor { scratch: Region::new(AT as u32, size as u32), ..Default::default() };
    memory[..KernelDescriptor::SIZE].copy_from_slice(&desc.to_bytes());
    f(&mut Call::open(Memory::over(memory), 0).expect("a sound descriptor").scratch)
}

/// Every element is within `rel` of its expected value and `abs`, as the judge of kernels has it. The judge itself
/// needs packages of a registry, and the pack is built from none; it judges the modules that are made of this.
#[track_caller]
pub(crate) fn assert_close(actual: &[f32], expected: &[f64], rel: f64, abs: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - e).abs();
        assert!(error <= rel * e.abs() + abs, "element {i}: {a:e}, expected {e:e}");
    }
}
