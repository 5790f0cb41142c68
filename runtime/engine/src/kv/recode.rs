//! Writing a block's numbers in a codec, and reading them back.
//!
//! Packing and unpacking are the registry's kernels; by channel, they are given the block turned
//! over: a row is then one channel's tokens.

use bytemuck::cast_slice;
use half::f16;
use half::slice::HalfFloatSliceExt;
use ruvllm_host::Scope;
use ruvllm_native::ThreadPool;

use super::block::{BlockShape, Side};
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::kv_policy::KvCodec;
use crate::memory::room;

/// Who packs: the kernels of the step, and threads for large blocks.
pub(crate) struct Packer<'a> {
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) pool: &'a ThreadPool,
    /// Whose numbers they are.
    pub(crate) scope: Scope,
    pub(crate) scratch: &'a mut Scratch,
}

/// Working memory, kept from block to block.
#[derive(Default)]
pub(crate) struct Scratch {
    rows: Vec<f32>,
    turned: Vec<f32>,
}

impl Packer<'_> {
    /// Writes rows `[n, kv_dim]` to a layer of `side` as its tokens from `at` on. By channel, they
    /// must be all tokens of the block.
    pub(crate) fn write(
        &mut self,
        shape: &BlockShape,
        side: &mut Side,
        layer: usize,
        at: usize,
        rows: &[f32],
    ) -> Result<(), EngineError> {
        let codec = side.codec;
        let n = rows.len() / shape.kv_dim;
        let range = shape.bytes(codec, at)..shape.bytes(codec, at + n);
        let bytes = &mut side.bytes_mut(shape, layer)[range];
        match codec {
            KvCodec::F32 => bytes.copy_from_slice(cast_slice(rows)),
            KvCodec::F16 => {
                bytemuck::cast_slice_mut::<u8, f16>(bytes).convert_from_f32_slice(rows);
            }
            KvCodec::Q8_0 | KvCodec::Q4_0 => {
                self.kernels.kv_pack(
                    self.pool,
                    self.scope,
                    codec.dtype(),
                    rows,
                    shape.kv_dim,
                    bytes,
                )?;
            }
            KvCodec::Q8_0Channels | KvCodec::Q4_0Channels => {
                let turned = room(&mut self.scratch.turned, rows.len());
                turn(rows, shape.kv_dim, turned);
                self.kernels.kv_pack(self.pool, self.scope, codec.dtype(), turned, n, bytes)?;
            }
        }
        Ok(())
    }

    /// Writes the first `tokens` tokens of `from` to `to`, which holds whole blocks; its other tokens
    /// become zero.
    pub(crate) fn recode(
        &mut self,
        shape: &BlockShape,
        tokens: usize,
        from: &Side,
        to: &mut Side,
    ) -> Result<(), EngineError> {
        (0..shape.layers).try_for_each(|layer| self.recode_layer(shape, layer, tokens, from, to))
    }

    /// [`Packer::recode`] of one layer.
    pub(crate) fn recode_layer(
        &mut self,
        shape: &BlockShape,
        layer: usize,
        tokens: usize,
        from: &Side,
        to: &mut Side,
    ) -> Result<(), EngineError> {
        let mut rows = std::mem::take(&mut self.scratch.rows);
        let all = room(&mut rows, shape.tokens * shape.kv_dim);
        all[tokens * shape.kv_dim..].fill(0.0);
        let read = self.read(shape, layer, tokens, from, &mut all[..tokens * shape.kv_dim]);
        let written = read.and_then(|()| self.write(shape, to, layer, 0, all));
        self.scratch.rows = rows;
        written
    }

    /// Reads the first `tokens` tokens of a layer of `side` as rows `[tokens, kv_dim]`. By channel, they must
    /// be all tokens of the block.
    pub(crate) fn read(
        &mut self,
        shape: &BlockShape,
        layer: usize,
        tokens: usize,
        side: &Side,
        rows: &mut [f32],
    ) -> Result<(), EngineError> {
        let (codec, dim) = (side.codec, shape.kv_dim);
        let bytes = side.bytes(shape, layer);
        match codec {
            KvCodec::F32 => rows.copy_from_slice(&cast_slice(bytes)[..rows.len()]),
            KvCodec::F16 => {
                cast_slice::<u8, f16>(bytes)[..rows.len()].convert_to_f32_slice(rows);
            }
            KvCodec::Q8_0 | KvCodec::Q4_0 => {
                let bytes = &bytes[..shape.bytes(codec, tokens)];
                self.kernels.kv_unpack(self.pool, self.scope, codec.dtype(), bytes, dim, rows)?;
            }
            KvCodec::Q8_0Channels | KvCodec::Q4_0Channels => {
                let turned = room(&mut self.scratch.turned, rows.len());
                self.kernels.kv_unpack(
                    self.pool,
                    self.scope,
                    codec.dtype(),
                    bytes,
                    shape.tokens,
                    turned,
                )?;
                turn(turned, shape.tokens, rows);
            }
        }
        Ok(())
    }
}

/// `[n, dim]` to `[dim, n]`.
fn turn(rows: &[f32], dim: usize, turned: &mut [f32]) {
    let n = rows.len() / dim;
    for (token, row) in rows.chunks_exact(dim).enumerate() {
        for (&value, turned) in row.iter().zip(turned[token..].iter_mut().step_by(n)) {
            *turned = value;
        }
    }
}
