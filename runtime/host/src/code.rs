//! A kernel's code, ready to be published: what admission let through, or the host's own.

use crate::OpKey;
use crate::admit::AdmittedKernel;
use crate::gate::executor::Decision;
use crate::instance::InstanceTemplate;
use crate::op::plan::CallPlan;
use crate::pack::PackId;
use crate::stats::KernelStats;
use crate::team::{Native, Provider};
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

/// What the documentation of [`PreparedKernel`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn exchange_the_code(one: PreparedKernel, other: PreparedKernel) -> PreparedKernel {
    PreparedKernel { code: one.code, ..other }
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
        /// Whether it has `kernel_backward`.
        backward: bool,
        /// What runs it, and why.
        runs: Arc<str>,
    },
    /// The host's own code.
    Native {
        /// What it computes.
        op: Op,
    },
    /// Who computes a team operation.
    Team {
        /// Its code.
        provider: Provider,
        /// Where it is the host's own, how it computes on this machine.
        native: Option<String>,
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

    /// One of the host's own providers of team operations.
    pub(crate) fn native_provider(native: Native, version: &str) -> Self {
        let Native { id, provider, about } = native;
        let (id, pack) = (format!("native:{id}"), ("native".to_owned(), version.to_owned()));
        Self::of_provider(id, provider, pack, Some(about), version)
    }

    /// A provider that the host application brings in a pack of this digest.
    pub(crate) fn provider(id: String, provider: Provider, pack: &PackId) -> Self {
        let names = (pack.name.clone(), pack.version.clone());
        Self::of_provider(id, provider, names, None, &pack.digest)
    }

    fn of_provider(
        id: String,
        provider: Provider,
        pack: (String, String),
        native: Option<String>,
        digest: &str,
    ) -> Self {
        let (key, hash) = (provider.key(), format!("{id} {digest}"));
        let executor = if native.is_some() { "native" } else { "in-process" };
        Self {
            hash,
            plan: CallPlan::none(),
            code: Code::Team { provider, native },
            stats: Arc::new(KernelStats::new(key.clone(), id, pack, executor)),
            key,
        }
    }

    /// A sandboxed kernel of a pack, by name and version, which only admission can give.
    pub(crate) fn sandboxed(admitted: &AdmittedKernel<'_>, pack: (String, String)) -> Self {
        let gated = admitted.gated();
        let key = gated.key().clone();
        let Decision { executor, reason } = gated.decision();
        let stats = KernelStats::new(key.clone(), gated.id().to_owned(), pack, executor.name());
        let (template, verified) = (admitted.template().clone(), admitted.is_verified());
        let backward = gated.spec().backward;
        let runs = reason.as_str().into();
        Self {
            hash: gated.hash().to_owned(),
            key,
            plan: gated.plan().clone(),
            code: Code::Sandboxed { template, verified, backward, runs },
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

    /// Whether it answers calls for gradients.
    pub(crate) fn has_backward(&self) -> bool {
        match &self.code {
            Code::Native { .. } => self.plan.has_gradients(),
            Code::Sandboxed { backward, .. } => *backward,
            Code::Team { .. } => false,
        }
    }

    pub(crate) fn is_native(&self) -> bool {
        matches!(self.code, Code::Native { .. } | Code::Team { native: Some(_), .. })
    }

    /// Its code, where all threads compute an operation of it together.
    pub(crate) fn team(&self) -> Option<&Provider> {
        match &self.code {
            Code::Team { provider, .. } => Some(provider),
            _ => None,
        }
    }

    /// Whether `name` means this kernel: its id, alone or qualified by its pack.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        name == self.id()
            || name.split_once('/').is_some_and(|(pack, id)| pack == self.pack() && id == self.id())
    }
}
