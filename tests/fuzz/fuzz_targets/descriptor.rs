//! What a kernel makes of a descriptor, of a call or of one for gradients: any is refused or gives regions
//! that lie in the memory and apart from each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_abi::BackwardDescriptor;
use ruvllm_kernel_sdk::{
    BackwardCall, BlockQ4_0, BlockQ8_0, Call, F16, Memory, TensorMut, TensorView,
};

#[repr(C, align(64))]
struct Linear([u8; 4096]);

// Both descriptors begin alike, so the bytes are tried as either.
fuzz_target!(|input: ([u8; BackwardDescriptor::SIZE], u16, [u8; 3], Vec<u8>)| {
    let (descriptor, at, shape, content) = input;
    let mut memory = Linear([0; 4096]);
    let n = content.len().min(memory.0.len());
    memory.0[..n].copy_from_slice(&content[..n]);
    let at = usize::from(at);
    if let Some(place) = memory.0.get_mut(at..at + descriptor.len()) {
        place.copy_from_slice(&descriptor);
    }
    let shape = shape.map(usize::from);
    backward(&mut memory, at, &shape);
    let Ok(mut call) = Call::open(Memory::over(&mut memory.0), at) else { return };
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

fn backward(memory: &mut Linear, at: usize, shape: &[usize]) {
    let Ok(mut call) = BackwardCall::open(Memory::over(&mut memory.0), at) else { return };
    let read = [
        call.inputs.take::<f32>(shape).map(|view| view.as_slice().len()),
        TensorView::<f32>::new(call.grad_output, shape).map(|view| view.as_slice().len()),
    ];
    for len in read.into_iter().flatten() {
        assert_eq!(len, shape.iter().product::<usize>());
    }
    let (first, second) =
        (call.grad_inputs.take::<f32>(shape), call.grad_inputs.take::<f32>(shape));
    if let (Ok(mut first), Ok(mut second)) = (first, second) {
        first.as_mut_slice().fill(3.0);
        second.as_mut_slice().fill(4.0);
        assert!(first.as_mut_slice().iter().all(|x| *x == 3.0));
    }
}
