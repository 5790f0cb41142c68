//! A snapshot of the registry that is pinned for a step, with the slots of the operations in it.

use std::sync::Arc;

use ruvllm_abi::DType;
use ruvllm_host::{MatrixProviders, OpKey, OpSlot, RegistrySnapshot};

use crate::error::EngineError;
use crate::kv_policy::KvPolicy;
use crate::model::Model;
use crate::weights::Linear;

/// A snapshot with the slots of the decoder's operations in it.
pub(crate) struct Pinned {
    pub(super) keys: Arc<Keys>,
    pub(super) snapshot: Arc<RegistrySnapshot>,
    pub(super) rmsnorm: OpSlot,
    pub(super) rope: OpSlot,
    pub(super) swiglu: OpSlot,
    /// Pack and unpack, for each type of the cache that needs it.
    pub(super) kv: Vec<KvOps>,
    /// Only sessions with an adapter need it, so it may be absent.
    pub(super) lora: Option<OpSlot>,
    /// `None` where no steps are computed.
    pub(super) team: Option<TeamSlots>,
    /// By [`crate::weights::Linear::index`].
    pub(super) products: Vec<Option<MatrixProviders>>,
    /// Who gathers embeddings; `None` where no steps are computed.
    pub(super) table: Option<MatrixProviders>,
    pub(super) shaping: Shaping,
}

/// Which kernels shape keys and values: fingerprints for sequences without and with an adapter.
pub(crate) type Shaping = [[u8; 32]; 2];

/// Who packs and unpacks a type of the cache.
pub(super) struct KvOps {
    pub(super) dtype: DType,
    pub(super) pack: OpSlot,
    pub(super) unpack: OpSlot,
}

/// Keys of the decoder's operations, made once: a step that crosses an activation looks them all up.
pub(crate) struct Keys {
    pub(super) rmsnorm: OpKey,
    pub(super) rope: OpKey,
    pub(super) swiglu: OpKey,
    pub(super) lora: OpKey,
    /// Pack and unpack, for each type of the cache that needs it.
    pub(super) kv: Vec<(DType, OpKey, OpKey)>,
    /// `None` where no steps are computed.
    pub(super) team: Option<TeamKeys>,
}

impl Keys {
    pub(crate) fn new(kv: &KvPolicy, model: Option<&Model>) -> Keys {
        let mut packed: Vec<_> = kv.packed().collect();
        packed.sort_unstable_by_key(|dtype| dtype.name());
        packed.dedup();
        let kv = |dtype| (dtype, OpKey::kv_pack(dtype), OpKey::kv_unpack(dtype));
        Keys {
            rmsnorm: OpKey::rmsnorm_f32(),
            rope: OpKey::rope_f32(),
            swiglu: OpKey::swiglu_f32(),
            lora: OpKey::lora_f32(),
            kv: packed.into_iter().map(kv).collect(),
            team: model.map(TeamKeys::new),
        }
    }
}

impl Pinned {
    pub(super) fn new(
        snapshot: Arc<RegistrySnapshot>,
        keys: Arc<Keys>,
    ) -> Result<Pinned, EngineError> {
        let slot = |key: &OpKey| {
            snapshot.slot(key).ok_or_else(|| EngineError::OpUnavailable { op: key.to_string() })
        };
        let (rmsnorm, rope, swiglu) =
            (slot(&keys.rmsnorm)?, slot(&keys.rope)?, slot(&keys.swiglu)?);
        let lora = snapshot.slot(&keys.lora);
        let kv = keys.kv.iter().map(|(dtype, pack, unpack)| {
            Ok(KvOps { dtype: *dtype, pack: slot(pack)?, unpack: slot(unpack)? })
        });
        let kv: Vec<KvOps> = kv.collect::<Result<_, EngineError>>()?;
        let team = keys.team.as_ref().map(|keys| keys.slots(&snapshot)).transpose()?;
        // Norms shape keys and values as much as the rotation does, and so do products and attention.
        let shaping = [rmsnorm, rope, swiglu].into_iter().chain(kv.iter().map(|kv| kv.pack));
        let shaping = shaping.chain(team.iter().flat_map(TeamSlots::all));
        let plain = snapshot.fingerprint(shaping.clone())?;
        let adapted = snapshot.fingerprint(shaping.chain(lora))?;
        let (shaping, products, table) = ([plain, adapted], Vec::new(), None);
        Ok(Pinned {
            keys,
            rmsnorm,
            rope,
            swiglu,
            kv,
            lora,
            team,
            products,
            table,
            shaping,
            snapshot,
        })
    }

    pub(super) fn lora(&self) -> Result<OpSlot, EngineError> {
        self.lora.ok_or_else(|| EngineError::OpUnavailable { op: self.keys.lora.to_string() })
    }

    pub(super) fn kv(&self, dtype: DType) -> Result<&KvOps, EngineError> {
        let ops = self.kv.iter().find(|ops| ops.dtype == dtype);
        ops.ok_or_else(|| EngineError::OpUnavailable { op: OpKey::kv_pack(dtype).to_string() })
    }
}

impl Pinned {
    /// Who computes with each matrix, and with the table of embeddings.
    pub(super) fn providers(&self) -> impl Iterator<Item = &MatrixProviders> {
        self.products.iter().flatten().chain(&self.table)
    }

    /// Who multiplies by a matrix.
    pub(super) fn product(&self, linear: &Linear) -> Option<&MatrixProviders> {
        self.products.get(linear.index())?.as_ref()
    }
}

/// Where team operations lie in a snapshot.
pub(super) struct TeamSlots {
    pub(super) embed: OpSlot,
    pub(super) attention: OpSlot,
    pub(super) matmul: Vec<OpSlot>,
}

/// Keys of team operations.
pub(super) struct TeamKeys {
    pub(super) embed: OpKey,
    pub(super) attention: OpKey,
    pub(super) matmul: Vec<OpKey>,
}

impl TeamKeys {
    pub(super) fn new(model: &Model) -> TeamKeys {
        let weights = model.weights();
        let mut types: Vec<DType> = weights.multiplied().map(Linear::dtype).collect();
        types.sort_unstable_by_key(|dtype| dtype.name());
        types.dedup();
        TeamKeys {
            embed: OpKey::embed(weights.embedding.dtype()),
            attention: OpKey::attention(),
            matmul: types.into_iter().map(OpKey::matmul).collect(),
        }
    }

    /// Where the operations lie in a snapshot.
    pub(super) fn slots(&self, snapshot: &RegistrySnapshot) -> Result<TeamSlots, EngineError> {
        let slot = |key: &OpKey| {
            snapshot.slot(key).ok_or_else(|| EngineError::OpUnavailable { op: key.to_string() })
        };
        Ok(TeamSlots {
            embed: slot(&self.embed)?,
            attention: slot(&self.attention)?,
            matmul: self.matmul.iter().map(slot).collect::<Result<_, _>>()?,
        })
    }
}

impl TeamSlots {
    pub(super) fn all(&self) -> impl Iterator<Item = OpSlot> + Clone {
        [self.embed, self.attention].into_iter().chain(self.matmul.iter().copied())
    }
}
