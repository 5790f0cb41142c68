//! What a kernel makes of a descriptor: any is refused or gives regions that lie in the memory and
//! apart from each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_abi::KernelDescriptor;
use ruvllm_kernel_sdk::{BlockQ4_0, BlockQ8_0, Call, F16, Memory, TensorMut};

#[repr(C, align(64))]
struct Linear([u8; 4096]);

fuzz_target!(|input: ([u8; KernelDescriptor::SIZE], u16, [u8; 3], Vec<u8>)| {
    let (descriptor, at, shape, content) = input;
    let mut memory = Linear([0; 4096]);
    let n = content.len().min(memory.0.len());
    memory.0[..n].copy_from_slice(&content[..n]);
    let at = usize::from(at);
    if let Some(place) = memory.0.get_mut(at..at + descriptor.len()) {
        place.copy_from_slice(&descriptor);
    }
    let Ok(mut call) = Call::open(Memory::over(&mut memory.0), at) else { return };
    let shape = shape.map(usize::from);
    let taken = [
        call.inputs.take::<f32>(&shape).map(|view| view.as_slice().len()),
        call.inputs.take::<BlockQ8_0>(&shape).map(|view| view.as_slice().len() * 32),
        call.inputs.take::<F16>(&shape).map(|view| view.as_slice().len()),
        call.inputs.take::<BlockQ4_0>(&shape).map(|view| view.as_slice().len() * 32),
    ];
    for len in taken.into_iter().flatten() {
        assert_eq!(len, shape.iter().product::<usize>());
    }
    while call.params.take::<u32>().is_ok() {}
    if let Ok(scratch) = call.scratch.take::<f32>(shape[0]) {
        scratch.fill(1.0);
    }
    if let Ok(mut output) = TensorMut::<f32>::new(call.output, &shape) {
        output.as_mut_slice().fill(2.0);
    }
});
