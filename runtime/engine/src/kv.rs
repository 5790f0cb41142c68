//! The KV cache of one sequence.
//!
//! Keys and values of each layer are rows `[capacity, kv_dim]` in the cache's codec: plain
//! numbers, or GGML blocks that the KV kernels write and read. Capacity doubles up to the context, so that short
//! sequences stay small and long ones copy little. Invariant: rows below the length are complete
//! in every layer; a step that fails leaves the length, and so the sequence, as it was.

use half::f16;
use half::slice::HalfFloatSliceExt;
use ruvllm_abi::DType;
use ruvllm_native::attention::{KvLayout, KvSegment};

use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::storage::AlignedBytes;

/// How a KV cache stores its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// IEEE binary16.
    #[default]
    F16,
    /// 8-bit blocks of 32.
    Q8_0,
    /// 4-bit blocks of 32.
    Q4_0,
    /// IEEE binary32: twice the memory of f16, for comparison with exact results.
    F32,
}

impl KvType {
    /// The element type of stored rows.
    pub const fn dtype(self) -> DType {
        match self {
            KvType::F16 => DType::F16,
            KvType::Q8_0 => DType::Q8_0,
            KvType::Q4_0 => DType::Q4_0,
            KvType::F32 => DType::F32,
        }
    }

    /// Whether rows are blocks that kernels pack and unpack.
    pub const fn is_quantized(self) -> bool {
        self.dtype().is_quantized()
    }

    /// Checks that heads of this model fill whole blocks.
    ///
    /// # Errors
    /// [`EngineError::KvHeadDim`].
    pub fn check(self, config: &ModelConfig) -> Result<(), EngineError> {
        let block = self.dtype().layout().elems;
        if config.head_dim.is_multiple_of(block) {
            return Ok(());
        }
        Err(EngineError::KvHeadDim { codec: self.dtype(), head_dim: config.head_dim })
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.dtype().name())
    }
}

/// The text names no KV codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV codec; known are f16, q8_0, q4_0 and f32")]
pub struct UnknownKvType;

impl std::str::FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(s: &str) -> Result<KvType, UnknownKvType> {
        [KvType::F16, KvType::Q8_0, KvType::Q4_0, KvType::F32]
            .into_iter()
            .find(|kv| kv.dtype().name() == s)
            .ok_or(UnknownKvType)
    }
}

#[derive(Clone, Default)]
struct LayerCache {
    k: AlignedBytes,
    v: AlignedBytes,
}

/// Which half of a layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// Keys and values of one sequence.
pub struct KvCache {
    kind: KvType,
    row_bytes: usize,
    layers: Vec<LayerCache>,
    len: usize,
    capacity: usize,
    context: usize,
}

/// Tokens that the first allocation holds.
const FIRST_BLOCK: usize = 256;

impl KvCache {
    /// An empty cache for up to `context` tokens.
    ///
    /// # Errors
    /// [`EngineError::KvHeadDim`].
    pub fn new(config: &ModelConfig, kind: KvType, context: usize) -> Result<KvCache, EngineError> {
        kind.check(config)?;
        let row_bytes = kind
            .dtype()
            .bytes_for(config.kv_dim())
            .ok_or(EngineError::KvHeadDim { codec: kind.dtype(), head_dim: config.head_dim })?;
        let layers = vec![LayerCache::default(); config.layers()];
        Ok(KvCache { kind, row_bytes, layers, len: 0, capacity: 0, context })
    }

    /// The codec.
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most tokens it can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes that it holds now.
    pub fn bytes(&self) -> usize {
        2 * self.layers.len() * self.capacity * self.row_bytes
    }

    /// Forgets the tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes room for `extra` tokens after the current ones.
    ///
    /// # Errors
    /// [`EngineError::PromptTooLong`] where they exceed the context.
    pub(crate) fn reserve(&mut self, extra: usize) -> Result<(), EngineError> {
        if extra > self.context - self.len {
            return Err(EngineError::PromptTooLong {
                prompt: extra,
                used: self.len,
                context: self.context,
            });
        }
        let needed = self.len + extra;
        if needed > self.capacity {
            let capacity =
                needed.max(2 * self.capacity).next_multiple_of(FIRST_BLOCK).min(self.context);
            for layer in &mut self.layers {
                layer.k.resize(capacity * self.row_bytes);
                layer.v.resize(capacity * self.row_bytes);
            }
            self.capacity = capacity;
        }
        Ok(())
    }

    /// Counts `extra` tokens as stored, once every layer has their rows.
    pub(crate) fn commit(&mut self, extra: usize) {
        self.len += extra;
    }

    /// Bytes of one token's keys in one layer.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Stores rows `[n, kv_dim]` as plain numbers from position `self.len()` on.
    pub(crate) fn store(&mut self, layer: usize, half: Half, rows: &[f32]) {
        if self.kind == KvType::F32 {
            return self.store_bytes(layer, half, bytemuck::cast_slice(rows));
        }
        let start = self.len * self.row_bytes;
        let bytes = &mut self.half_mut(layer, half)[start..start + 2 * rows.len()];
        bytemuck::cast_slice_mut::<u8, f16>(bytes).convert_from_f32_slice(rows);
    }

    /// Stores rows that are in the cache's codec already from position `self.len()` on.
    pub(crate) fn store_bytes(&mut self, layer: usize, half: Half, packed: &[u8]) {
        let start = self.len * self.row_bytes;
        self.half_mut(layer, half)[start..start + packed.len()].copy_from_slice(packed);
    }

    /// The stored rows of positions `first .. first + len`.
    pub(crate) fn rows(&self, layer: usize, half: Half, first: usize, len: usize) -> &[u8] {
        let cache = &self.layers[layer];
        let all = match half {
            Half::Keys => cache.k.as_slice(),
            Half::Values => cache.v.as_slice(),
        };
        &all[first * self.row_bytes..(first + len) * self.row_bytes]
    }

    /// The rows of positions `first .. first + len` as attention reads them.
    pub(crate) fn segment(&self, layer: usize, first: usize, len: usize) -> KvSegment<'_> {
        let dtype = self.kind.dtype();
        KvSegment {
            start: first,
            len,
            k_dtype: dtype,
            v_dtype: dtype,
            k_layout: KvLayout::Tokens,
            v_layout: KvLayout::Tokens,
            k: self.rows(layer, Half::Keys, first, len),
            v: self.rows(layer, Half::Values, first, len),
        }
    }

    fn half_mut(&mut self, layer: usize, half: Half) -> &mut [u8] {
        let cache = &mut self.layers[layer];
        match half {
            Half::Keys => cache.k.as_mut_slice(),
            Half::Values => cache.v.as_mut_slice(),
        }
    }
}
