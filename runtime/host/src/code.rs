//! A kernel's code, ready to be published: what admission let through, or the host's own.

use crate::OpKey;
use crate::admit::AdmittedKernel;
use crate::instance::InstanceTemplate;
use crate::op::plan::CallPlan;
use crate::stats::KernelStats;
use ruvllm_abi::Op;
use ruvllm_abi::contract::Variant;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What a kernel is, apart from its place in a generation: kept so that it can be published again
/// without being compiled or proved again. It is an [`AdmittedKernel`] or the host's own code.
///
/// ```compile_fail,E0451
/// use ruvllm_host::lifecycle::PreparedKernel;
///
/// fn exchange_the_code(one: PreparedKernel, other: PreparedKernel) -> PreparedKernel {
///     PreparedKernel { code: one.code, ..other }
/// }
/// ```
#[derive(Clone)]
#[deny(clippy::field_scoped_visibility_modifiers)]
pub struct PreparedKernel {
    key: OpKey,
    hash: String,
    plan: CallPlan,
    code: Code,
    stats: Arc<KernelStats>,
}

/// What computes.
#[derive(Clone)]
pub(crate) enum Code {
    /// A sandboxed module.
    Sandboxed {
        /// What its instances are made of.
        template: Arc<InstanceTemplate>,
        /// Whether its numbers were held against an oracle.
        verified: bool,
    },
    /// The host's own code.
    Native {
        /// What it computes.
        op: Op,
    },
}

impl PreparedKernel {
    /// The native twin of a catalogue operation.
    pub(crate) fn native(op: Op, variant: &Variant, version: &str) -> Self {
        let key = OpKey::of(op, variant);
        let id = format!("native:{}", variant.kernel);
        let hash = format!("{id} {version}");
        let pack = ("native".to_owned(), version.to_owned());
        Self {
            hash,
            plan: CallPlan::of_op(op, variant.inputs, variant.output),
            code: Code::Native { op },
            stats: Arc::new(KernelStats::new(key.clone(), id, pack, "native")),
            key,
        }
    }

    /// A sandboxed kernel of a pack, by name and version, which only admission can give.
    pub(crate) fn sandboxed(admitted: &AdmittedKernel<'_>, pack: (String, String)) -> Self {
        let gated = admitted.gated();
        let key = gated.key().clone();
        let stats = KernelStats::new(key.clone(), gated.id().to_owned(), pack, "wasmtime");
        let (template, verified) = (admitted.template().clone(), admitted.is_verified());
        Self {
            hash: gated.hash().to_owned(),
            key,
            plan: gated.plan().clone(),
            code: Code::Sandboxed { template, verified },
            stats: Arc::new(stats),
        }
    }

    /// What it computes.
    #[inline]
    pub(crate) fn key(&self) -> &OpKey {
        &self.key
    }

    /// Of its module; of a native twin, the version that it came with.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    #[inline]
    pub(crate) fn plan(&self) -> &CallPlan {
        &self.plan
    }

    #[inline]
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }

    #[inline]
    pub(crate) fn stats(&self) -> &Arc<KernelStats> {
        &self.stats
    }

    pub(crate) fn id(&self) -> &str {
        &self.stats.kernel
    }

    pub(crate) fn pack(&self) -> &str {
        &self.stats.pack
    }

    pub(crate) fn generation(&self) -> u64 {
        self.stats.generation.load(Relaxed)
    }

    pub(crate) fn is_native(&self) -> bool {
        matches!(self.code, Code::Native { .. })
    }

    /// Whether `name` means this kernel: its id, alone or qualified by its pack.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        name == self.id()
            || name.split_once('/').is_some_and(|(pack, id)| pack == self.pack() && id == self.id())
    }
}
