//! Keys of shared prefixes.
//!
//! The key of a block stands for everything that its numbers follow from: the model, how blocks
//! are stored, the kernels that shape them, whom the sequence is shared with, its adapter, and all
//! tokens up to the block's last. It is a chain of BLAKE3 hashes, one block at a time, so a longer prefix is found
//! by walking on from a shorter one. After a hot swap of a kernel that shapes keys or values the
//! same tokens have other keys, and what the old kernel wrote is found no more.

use super::block::Codecs;
use crate::kv_policy::KvPolicy;

/// Everything that a block's numbers follow from, as a hash.
pub(crate) type PrefixKey = [u8; 32];

/// The key of sequences of a name that compute with the adapter of this fingerprint, or with none;
/// different names share nothing, nor do different adapters.
pub(crate) fn scope(name: &str, adapter: Option<&[u8; 32]>) -> PrefixKey {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm prefix scope v2");
    hasher.update(adapter.unwrap_or(&[0; 32])).update(name.as_bytes());
    *hasher.finalize().as_bytes()
}

/// The hash of what all sequences of an engine have in common at a generation of its kernels.
pub(crate) fn origin(
    model: &[u8; 32],
    policy: &KvPolicy,
    block: usize,
    kernels: &[u8; 32],
) -> PrefixKey {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm prefix origin v1");
    hasher.update(model).update(kernels).update(&(block as u64).to_le_bytes());
    hasher.update(policy.to_string().as_bytes());
    *hasher.finalize().as_bytes()
}

/// The key of a block of `tokens` that follows `before`: the key of the block before it, or the scope
/// of the sequence.
pub(crate) fn extend(origin: &PrefixKey, before: &PrefixKey, tokens: &[u32]) -> PrefixKey {
    let mut hasher = blake3::Hasher::new_keyed(origin);
    hasher.update(before);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// The key of the same block in smaller codecs.
pub(crate) fn packed(key: &PrefixKey, codecs: Codecs) -> PrefixKey {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&[codecs.keys.id(), codecs.values.id()]);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvCodec;

    #[test]
    fn everything_that_shapes_a_block_changes_its_key() {
        let origin_of = |model: u8, policy: KvPolicy, block, kernels: u8| {
            origin(&[model; 32], &policy, block, &[kernels; 32])
        };
        let plain = origin_of(1, KvPolicy::default(), 32, 1);
        let others = [
            origin_of(2, KvPolicy::default(), 32, 1),
            origin_of(1, KvCodec::Q8_0.into(), 32, 1),
            origin_of(1, KvPolicy { rotate: true, ..KvPolicy::default() }, 32, 1),
            origin_of(1, KvPolicy::default(), 16, 1),
            origin_of(1, KvPolicy::default(), 32, 2),
        ];
        let a = scope("a", None);
        let key = extend(&plain, &a, &[1, 2, 3]);
        assert_eq!(key, extend(&plain, &a, &[1, 2, 3]));
        for other in others {
            assert_ne!(key, extend(&other, &a, &[1, 2, 3]));
        }
        assert_ne!(key, extend(&plain, &scope("b", None), &[1, 2, 3]));
        assert_ne!(key, extend(&plain, &scope("a", Some(&[1; 32])), &[1, 2, 3]));
        assert_ne!(key, extend(&plain, &a, &[1, 2, 4]));
        assert_ne!(key, extend(&plain, &key, &[1, 2, 3]));
    }
}
