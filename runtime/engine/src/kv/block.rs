//! Blocks: keys and values of a run of tokens in slots of the pool.

use crate::config::ModelConfig;
use crate::kv_policy::{KvCodec, KvPolicy, KvTiers};
use crate::memory::Lease;
use crate::memory::pages::slot_size;
use ruvllm_native::attention::KvRows;

/// Which half of a layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

impl Half {
    pub(crate) const BOTH: [Half; 2] = [Half::Keys, Half::Values];
}

/// What all blocks of an engine have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    pub(crate) layers: usize,
    /// Elements of a token's keys in one layer.
    pub(crate) kv_dim: usize,
    /// Tokens of a block.
    pub(crate) tokens: usize,
}

impl BlockShape {
    pub(crate) fn new(config: &ModelConfig, tokens: usize) -> BlockShape {
        BlockShape { layers: config.layers.len(), kv_dim: config.kv_dim(), tokens }
    }

    /// Bytes of `tokens` tokens' keys, or values, in one layer. Heads are whole blocks of the
    /// codec ([`super::KvPolicy::check`]), and so is a block of tokens by channel.
    pub(crate) fn bytes(&self, codec: KvCodec, tokens: usize) -> usize {
        let layout = codec.dtype().layout();
        tokens * self.kv_dim / layout.elems * layout.bytes
    }

    /// The size of a slot.
    pub(crate) fn slot(&self, codec: KvCodec) -> usize {
        slot_size(self.bytes(codec, self.tokens))
    }
}

/// Keys, or values, of a block: a slot for each layer.
pub(crate) struct Side {
    pub(crate) codec: KvCodec,
    pub(crate) lease: Lease,
}

impl Side {
    /// The stored bytes of a layer.
    pub(crate) fn bytes(&self, shape: &BlockShape, layer: usize) -> &[u8] {
        &self.lease.slots()[layer][..shape.bytes(self.codec, shape.tokens)]
    }

    /// The stored bytes of a layer, to write to.
    pub(crate) fn bytes_mut(&mut self, shape: &BlockShape, layer: usize) -> &mut [u8] {
        let bytes = shape.bytes(self.codec, shape.tokens);
        &mut self.lease.slots_mut()[layer][..bytes]
    }

    /// What attention needs to read the first `len` tokens of a layer.
    pub(super) fn rows(&self, shape: &BlockShape, layer: usize, len: usize) -> KvRows<'_> {
        // By channel, the numbers of a token are spread over the whole slot.
        let len = if self.codec.by_channel() { shape.tokens } else { len };
        let data = &self.bytes(shape, layer)[..shape.bytes(self.codec, len)];
        KvRows::new(self.codec.dtype(), self.codec.layout(), data)
    }
}

/// The codecs of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codecs {
    pub(crate) keys: KvCodec,
    pub(crate) values: KvCodec,
}

impl Codecs {
    /// Those that a choice among the tiers of a policy gives.
    pub(crate) fn new(policy: &KvPolicy, choose: impl Fn(&KvTiers) -> KvCodec) -> Codecs {
        Codecs { keys: choose(&policy.keys), values: choose(&policy.values) }
    }

    pub(crate) fn of(self, half: Half) -> KvCodec {
        match half {
            Half::Keys => self.keys,
            Half::Values => self.values,
        }
    }

    /// Whether keys or values have fewer bits here.
    pub(crate) fn has_fewer_bits(self, other: Codecs) -> bool {
        Half::BOTH.iter().any(|half| self.of(*half).bits() < other.of(*half).bits())
    }

    /// Bytes of a block's numbers.
    pub(crate) fn bytes(self, shape: &BlockShape) -> usize {
        let of = |codec| shape.bytes(codec, shape.tokens);
        shape.layers * (of(self.keys) + of(self.values))
    }
}
