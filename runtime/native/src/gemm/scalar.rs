//! The portable products: the reference for the others, and what unknown processors run.

use ruvllm_abi::DType;

use super::out::Columns;
use super::{ActChunk, Job};
use crate::quant::{self, CHUNK, GROUP, MAX_CHUNK_BYTES, Unpacked, chunk_bytes, is_blocked};

/// Computes the columns `y` for all activations.
pub(super) fn run(job: &Job<'_>, y: &mut Columns<'_>) {
    for row in y.range() {
        let w = job.w.row(row);
        for i in 0..job.act.rows() {
            let sum = if is_blocked(job.w.dtype()) {
                let stride = job.act.chunk_stride();
                dot_blocks(job.w.dtype(), w, &job.act.chunks()[i * stride..][..stride])
            } else {
                let stride = job.act.float_stride();
                dot_floats(job.w.dtype(), w, &job.act.floats()[i * stride..][..job.w.cols()])
            };
            y.put(i, row, &[sum], false);
        }
    }
}

fn dot_blocks(dtype: DType, w: &[u8], act: &[ActChunk]) -> f32 {
    let bytes = chunk_bytes(dtype);
    let mut chunk = Unpacked::ZERO;
    let mut sum = 0.0;
    for (w, act) in w.chunks(bytes).zip(act) {
        let mut padded = [0; MAX_CHUNK_BYTES];
        padded[..w.len()].copy_from_slice(w);
        quant::unpack(dtype, &padded[..bytes], &mut chunk);
        for g in 0..CHUNK / GROUP {
            let range = g * GROUP..(g + 1) * GROUP;
            let pairs = chunk.q[range.clone()].iter().zip(&act.q[range]);
            let dot: i32 = pairs.map(|(w, a)| i32::from(*w) * i32::from(*a)).sum();
            sum += chunk.scale[g] * act.scale[g] * dot as f32 - chunk.offset[g] * act.sum[g];
        }
    }
    sum
}

fn dot_floats(dtype: DType, w: &[u8], act: &[f32]) -> f32 {
    let size = dtype.layout().bytes;
    let mut buffer = [0.0; CHUNK];
    let mut lanes = [0.0f32; 8];
    for (w, act) in w.chunks(CHUNK * size).zip(act.chunks(CHUNK)) {
        quant::dequantize(dtype, w, &mut buffer[..act.len()], |_, _| ());
        for (i, (w, a)) in buffer.iter().zip(act).enumerate() {
            lanes[i % 8] += w * a;
        }
    }
    lanes.iter().sum()
}
