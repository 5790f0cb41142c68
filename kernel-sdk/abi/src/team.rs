//! Team operations: what all threads of a step compute together, and the layouts of what they read.
//!
//! An operation of [`contract`](crate::contract) is called by each thread for rows of its own. These are called
//! once, with all threads, since only who computes them knows how to split the work: a product reads weights that
//! were laid out for it once, and attention reads a cache. Whoever computes one is a *provider*. Hosts have providers
//! of their own, and host applications bring others; no executor of packs offers these operations, so that a pack
//! with a kernel of one is refused (`team_operation`).
//!
//! # Activations
//!
//! A product says which form of its input it reads. Rows of activations `[m, k]` are, by [`ActForm`]:
//!
//! - `Ints`: for each row [`chunks`] chunks, one behind the other, and the rows likewise without a gap.
//! - `Floats`: binary32, with zeros from the end of each row to the next, which is `stride >= k` elements behind.
//! - `Pairs`: words of two bfloat16, elements `2i` in the low half and `2i + 1` in the high one, with zeros from the end
//!   of each row to the next, which is `stride >= ceil(k / 2)` words behind.
//!
//! Chunks begin at multiples of 64 bytes.

/// An operation that all threads of a step compute together. Results are binary32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamOp {
    /// `y = x w^T`, of `x` `[m, k]` and weights `w` `[n, k]` of any type that products read. A bias is not part of
    /// it.
    Matmul,
    /// Rows `[tokens, dim]` of a table `[vocab, dim]` as binary32, exactly as the definition of their type gives
    /// them.
    Embed,
    /// `y = softmax(scale * q k^T) v` for each head over the keys that its query may see (Vaswani et al.,
    /// arXiv 1706.03762; with fewer heads of keys than of queries Ainslie et al., arXiv 2305.13245), of `q`
    /// `[queries, heads, head_dim]` and `k` and `v` `[keys, kv_heads, head_dim]`, which are of any type of the cache
    /// and of several at a time. A residual is not part of it.
    Attention,
}

impl TeamOp {
    /// Every team operation.
    pub const ALL: [TeamOp; 3] = [TeamOp::Matmul, TeamOp::Embed, TeamOp::Attention];

    /// The name, such as `matmul`.
    pub const fn name(self) -> &'static str {
        match self {
            TeamOp::Matmul => "matmul",
            TeamOp::Embed => "embed",
            TeamOp::Attention => "attention",
        }
    }

    /// The operation of that name.
    pub fn from_name(name: &str) -> Option<TeamOp> {
        TeamOp::ALL.into_iter().find(|op| op.name() == name)
    }
}

/// A form of activations that products read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActForm {
    /// 8-bit integers with scales: [`ActChunk`].
    Ints,
    /// binary32, in padded rows.
    Floats,
    /// Pairs of bfloat16, the first of each in the low bits, in padded rows.
    Pairs,
}

/// Activations of a chunk.
pub const CHUNK: usize = 256;

/// Activations that have a scale of their own in a chunk.
pub const GROUP: usize = 16;

/// Activations that a scale is chosen for.
pub const BLOCK: usize = 32;

/// Chunks of a row of `k` activations.
pub const fn chunks(k: usize) -> usize {
    k.div_ceil(CHUNK)
}

/// 256 activations of one row as 8-bit integers: `x = scale * q`. Past the end of a row all is 0.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct ActChunk {
    /// The integers, -127 to 127.
    pub q: [i8; CHUNK],
    /// One per 16 elements; pairs are equal, since scales are chosen per 32. All of a chunk are multiples, by at most
    /// 63, of a power of two.
    pub scale: [f32; CHUNK / GROUP],
    /// `scale * Σq` per 16 elements: what a weight's offset is multiplied with.
    pub sum: [f32; CHUNK / GROUP],
    /// The same per 32 elements.
    pub block_sum: [f32; CHUNK / BLOCK],
    /// `Σq` per 16 elements.
    pub total: [i16; CHUNK / GROUP],
    /// `Σq` per 32 elements.
    pub block_total: [i16; CHUNK / BLOCK],
}

impl ActChunk {
    /// A chunk of zeros.
    pub const ZERO: ActChunk = ActChunk {
        q: [0; CHUNK],
        scale: [0.0; CHUNK / GROUP],
        sum: [0.0; CHUNK / GROUP],
        block_sum: [0.0; CHUNK / BLOCK],
        total: [0; CHUNK / GROUP],
        block_total: [0; CHUNK / BLOCK],
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn a_chunk_lies_where_a_provider_in_another_language_reads_it() {
        assert_eq!((size_of::<ActChunk>(), align_of::<ActChunk>()), (512, 64));
        assert_eq!(offset_of!(ActChunk, q), 0);
        assert_eq!(offset_of!(ActChunk, scale), 256);
        assert_eq!(offset_of!(ActChunk, sum), 320);
        assert_eq!(offset_of!(ActChunk, block_sum), 384);
        assert_eq!(offset_of!(ActChunk, total), 416);
        assert_eq!(offset_of!(ActChunk, block_total), 448);
        assert_eq!([0, 1, 256, 257].map(chunks), [0, 1, 1, 2]);
    }

    #[test]
    fn team_operations_have_names_of_their_own() {
        for op in TeamOp::ALL {
            assert_eq!(TeamOp::from_name(op.name()), Some(op));
            assert_eq!(crate::Op::from_name(op.name()), None);
        }
        assert_eq!(TeamOp::from_name("softmax"), None);
    }
}
