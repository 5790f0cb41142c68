//! A kernel as the registry holds it.
//!
//! The steps that lead here are types: `GatedKernel` (the gates let it through), `AdmittedKernel`
//! (it computed the right numbers on this machine), [`Kernel`]. The first two are made only by the
//! modules whose step they stand for, so that code which skips a step does not compile.

use crate::OpKey;
use crate::admit::AdmittedKernel;
use crate::compare::host_tolerance;
use crate::exec::PreparedKernel;
use crate::plan::CallPlan;
use crate::stats::Ledger;
use ruvllm_abi::Op;
use ruvllm_abi::contract::Variant;
use ruvllm_manifest::Tolerance;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel of a published generation.
pub(crate) struct Kernel {
    /// Dense and never used again in this host: workers index their instances by it.
    pub(crate) uid: usize,
    pub(crate) key: OpKey,
    /// Of its module; of a native twin, the version that it came with.
    pub(crate) hash: String,
    pub(crate) plan: CallPlan,
    pub(crate) body: Body,
    pub(crate) ledger: Arc<Ledger>,
    /// What cross-checks allow; `None` where the bytes are exact or there is no twin.
    pub(crate) tolerance: Option<Tolerance>,
    /// Counts kernels that are gone, for workers to notice.
    retired: Arc<AtomicU64>,
}

/// What computes.
pub(crate) enum Body {
    /// A sandboxed module, with the words for its `kernel_init`.
    Sandbox { prepared: Arc<dyn PreparedKernel>, defaults: Vec<u32>, verified: bool },
    /// The host's own code.
    Native { op: Op },
}

/// What a kernel of any origin is described by.
pub(crate) struct Identity {
    pub(crate) uid: usize,
    pub(crate) pack: (String, String),
    pub(crate) retired: Arc<AtomicU64>,
}

impl Kernel {
    /// The native twin of a catalogue operation.
    pub(crate) fn native(op: Op, variant: &Variant, identity: Identity) -> Self {
        let key = OpKey::of(op, variant);
        let id = format!("native:{}", variant.kernel);
        let hash = format!("{id} {}", identity.pack.1);
        let ledger = Ledger::new(key.clone(), id, identity.pack, "native");
        Self {
            uid: identity.uid,
            hash,
            plan: CallPlan::of_op(op, variant.inputs, variant.output),
            key,
            body: Body::Native { op },
            ledger: Arc::new(ledger),
            tolerance: None,
            retired: identity.retired,
        }
    }

    /// A sandboxed kernel, which only admission can give.
    pub(crate) fn sandboxed(admitted: AdmittedKernel, identity: Identity) -> Self {
        let (gated, prepared, verified) = admitted.into_parts();
        let key = gated.key;
        let ledger = Ledger::new(key.clone(), gated.id, identity.pack, "wasmtime");
        let tolerance = key.known().and_then(|(op, _)| host_tolerance(op, key.output));
        Self {
            uid: identity.uid,
            hash: gated.hash,
            key,
            plan: gated.plan,
            body: Body::Sandbox { prepared, defaults: gated.defaults, verified },
            ledger: Arc::new(ledger),
            tolerance,
            retired: identity.retired,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.ledger.kernel
    }

    pub(crate) fn pack(&self) -> &str {
        &self.ledger.pack
    }

    pub(crate) fn generation(&self) -> u64 {
        self.ledger.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn is_native(&self) -> bool {
        matches!(self.body, Body::Native { .. })
    }

    /// Whether `name` means this kernel: its id, alone or qualified by its pack.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        name == self.id()
            || name.split_once('/').is_some_and(|(pack, id)| pack == self.pack() && id == self.id())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.retired.fetch_add(1, Ordering::Relaxed);
    }
}
