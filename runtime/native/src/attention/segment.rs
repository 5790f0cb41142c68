//! The segments of a cache, and whether their data fit.

use super::plan::LAST_POSITION;
use crate::NativeError;
use crate::ops::product;
use crate::probe::prefetch;
use ruvllm_abi::DType;
use std::ops::Range;

/// How the keys or the values of a segment lie. Every row is in the elements or blocks of its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvLayout {
    /// A row for each token: `[len, kv_heads * head_dim]`.
    #[default]
    Tokens,
    /// A row for each channel: `[kv_heads * head_dim, stored]`, of which the tokens `0..len` are used.
    /// `stored` follows from the size of the data: at least `len`, in whole blocks. Keys of one channel
    /// are more alike than those of one token, so they keep more of their bits in blocks of their own
    /// (Liu et al., arXiv 2402.02750).
    Channels,
}

/// A run of consecutive positions of the cache, its keys and values each in a layout and a type of
/// their own, one of F32, F16, `Q8_0` and `Q4_0`.
#[derive(Clone, Copy, Debug)]
pub struct KvSegment<'a> {
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub len: usize,
    /// Type of the keys.
    pub k_dtype: DType,
    /// Type of the values.
    pub v_dtype: DType,
    /// How the keys lie.
    pub k_layout: KvLayout,
    /// How the values lie.
    pub v_layout: KvLayout,
    /// Keys.
    pub k: &'a [u8],
    /// Values.
    pub v: &'a [u8],
}

impl<'a> KvSegment<'a> {
    /// Keys and values `[len, kv_heads, head_dim]` of one type, of the positions from 0 on.
    pub fn tokens(dtype: DType, len: usize, k: &'a [u8], v: &'a [u8]) -> KvSegment<'a> {
        let layout = KvLayout::Tokens;
        KvSegment {
            start: 0,
            len,
            k_dtype: dtype,
            v_dtype: dtype,
            k_layout: layout,
            v_layout: layout,
            k,
            v,
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl KvSegment<'_> {
    /// Asks memory for one of `parts` equal parts of some rows. Of rows that lie by channels it is as
    /// many bytes, which is right where they are all.
    #[inline(always)]
    pub(super) fn prefetch(&self, rows: Range<usize>, part: usize, parts: usize) {
        for data in [self.k, self.v] {
            let row = data.len() / self.len.max(1);
            let (start, bytes) = (rows.start * row, rows.len() * row);
            let part = start + bytes * part / parts..start + bytes * (part + 1) / parts;
            for at in part.step_by(LINE) {
                prefetch(data.as_ptr().wrapping_add(at));
            }
        }
    }
}

/// Checks the size of every segment.
pub(super) fn check(
    kv: &[KvSegment<'_>],
    kv_heads: usize,
    head_dim: usize,
) -> Result<(), NativeError> {
    let mut grains: [Option<Grain>; 2] = [None; 2];
    for segment in kv {
        let KvSegment { start, len, k_dtype, v_dtype, k_layout, v_layout, k, v } = *segment;
        let sides = [(k_dtype, k_layout, k), (v_dtype, v_layout, v)];
        for (grain, (dtype, layout, data)) in grains.iter_mut().zip(sides) {
            // Most segments are as the one before, and a paged cache has hundreds.
            let grain = match grain {
                Some(grain) if grain.dtype == dtype && grain.layout == layout => *grain,
                _ => *grain.insert(Grain::new(dtype, layout, kv_heads, head_dim)?),
            };
            grain.check(len, data.len())?;
        }
        if start.checked_add(len).is_none_or(|end| end > LAST_POSITION) {
            let what = "attention: last position of a segment";
            return Err(NativeError::Shape { what, expected: LAST_POSITION, actual: start });
        }
    }
    Ok(())
}

/// The least that keys or values can be stored in.
#[derive(Clone, Copy)]
struct Grain {
    dtype: DType,
    layout: KvLayout,
    /// Tokens: one, or the block of each channel.
    tokens: usize,
    bytes: usize,
}

impl Grain {
    fn new(
        dtype: DType,
        layout: KvLayout,
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<Grain, NativeError> {
        if !matches!(dtype, DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0) {
            return Err(NativeError::unsupported("attention", dtype));
        }
        let (tokens, dims) = match layout {
            KvLayout::Tokens => {
                let Some(head) = dtype.bytes_for(head_dim) else {
                    let detail =
                        format!("{dtype} with a head_dim of {head_dim}, which is not whole blocks");
                    return Err(NativeError::Unsupported { what: "attention", detail });
                };
                (1, [kv_heads, head, 1])
            }
            KvLayout::Channels => {
                let block = dtype.layout();
                (block.elems, [kv_heads, head_dim, block.bytes])
            }
        };
        let bytes = product("attention: bytes of a segment", &dims)?;
        Ok(Grain { dtype, layout, tokens, bytes })
    }

    /// Checks that `data` bytes hold `len` tokens: no more of them by tokens, whole blocks of every
    /// channel by channels.
    fn check(&self, len: usize, data: usize) -> Result<(), NativeError> {
        let what = match self.layout {
            KvLayout::Tokens => "attention: bytes of a segment",
            KvLayout::Channels => "attention: bytes of a segment by channels",
        };
        let grains = if self.tokens == 1 { len } else { len.div_ceil(self.tokens) };
        let least = grains.checked_mul(self.bytes);
        let least = least.ok_or(NativeError::Shape { what, expected: usize::MAX, actual: len })?;
        if least == data {
            return Ok(());
        }
        let expected = match self.layout {
            KvLayout::Tokens => least,
            KvLayout::Channels => {
                data.checked_next_multiple_of(self.bytes).unwrap_or(least).max(least)
            }
        };
        NativeError::check(what, expected, data)
    }
}
