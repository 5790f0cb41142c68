//! The segments of a cache, and whether their data fit.

use super::plan::LAST_POSITION;
use crate::NativeError;
use crate::ops::product;
use crate::prefetch::prefetch;
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

/// Keys or values of consecutive positions, in one of F32, F16, `Q8_0` and `Q4_0`.
#[derive(Clone, Copy, Debug)]
pub struct KvRows<'a> {
    /// Their type.
    pub dtype: DType,
    /// How they lie.
    pub layout: KvLayout,
    /// Their rows.
    pub data: &'a [u8],
    /// What their codec needs beside the rows, the same for all segments of a layer, such as a table. Type and layout
    /// say what it is. Those that there are need nothing, so that anything here is refused.
    pub constants: &'a [u8],
}

impl<'a> KvRows<'a> {
    /// Rows of a codec without constants.
    pub fn new(dtype: DType, layout: KvLayout, data: &'a [u8]) -> KvRows<'a> {
        KvRows { dtype, layout, data, constants: &[] }
    }

    /// Refuses constants, which no codec that is read here has.
    pub(crate) fn check_constants(&self) -> Result<(), NativeError> {
        NativeError::check("attention: constants of a codec", 0, self.constants.len())
    }
}

/// A run of consecutive positions of the cache.
#[derive(Clone, Copy, Debug)]
pub struct KvSegment<'a> {
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub len: usize,
    /// Keys `[len, kv_heads, head_dim]`.
    pub keys: KvRows<'a>,
    /// Values `[len, kv_heads, head_dim]`.
    pub values: KvRows<'a>,
}

impl<'a> KvSegment<'a> {
    /// Keys and values of one type, token by token, of the positions from 0 on.
    pub fn tokens(dtype: DType, len: usize, keys: &'a [u8], values: &'a [u8]) -> KvSegment<'a> {
        let [keys, values] = [keys, values].map(|data| KvRows::new(dtype, KvLayout::Tokens, data));
        KvSegment { start: 0, len, keys, values }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl KvSegment<'_> {
    /// Asks memory for one of `parts` equal parts of some rows. Of rows that lie by channels it is as
    /// many bytes, which is right where they are all.
    #[inline(always)]
    pub(super) fn prefetch(&self, rows: Range<usize>, part: usize, parts: usize) {
        for KvRows { data, .. } in [self.keys, self.values] {
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
        let KvSegment { start, len, keys, values } = *segment;
        for (grain, rows) in grains.iter_mut().zip([keys, values]) {
            let KvRows { dtype, layout, data, .. } = rows;
            // Most segments are as the one before, and a paged cache has hundreds.
            let grain = match grain {
                Some(grain) if grain.dtype == dtype && grain.layout == layout => *grain,
                _ => *grain.insert(Grain::new(dtype, layout, kv_heads, head_dim)?),
            };
            grain.check(len, data.len())?;
            rows.check_constants()?;
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
