//! A kernel that can be published, and one that is.
//!
//! The steps of its life are types: [`GatedKernel`](crate::gate::GatedKernel) (the gates let it
//! through), [`AdmittedKernel`] (it computed the right numbers on this machine), [`PreparedKernel`],
//! [`PublishedKernel`]. Each is made only by the module whose step it stands for, of the one before, so
//! that code which skips a step does not compile.

use crate::OpKey;
use crate::admit::AdmittedKernel;
use crate::compare::host_tolerance;
use crate::exec::window::Sandbox;
use crate::plan::CallPlan;
use crate::stats::Ledger;
use crate::swap::ready::Ready;
use ruvllm_abi::Op;
use ruvllm_abi::contract::Variant;
use ruvllm_manifest::Tolerance;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    ledger: Arc<Ledger>,
    tolerance: Option<Tolerance>,
}

/// A kernel of a published generation. It goes with the last snapshot that holds it, and the
/// instances that workers have of it go then too.
///
/// ```compile_fail,E0451
/// use ruvllm_host::lifecycle::{PreparedKernel, PublishedKernel};
///
/// fn replace(prepared: PreparedKernel, published: PublishedKernel) -> PublishedKernel {
///     PublishedKernel { prepared, ..published }
/// }
/// ```
#[deny(clippy::field_scoped_visibility_modifiers)]
pub struct PublishedKernel {
    uid: usize,
    ready: Ready,
    prepared: PreparedKernel,
    uids: Arc<Uids>,
}

/// Gives numbers to kernels, and takes them back from those that are gone.
#[derive(Default)]
pub(crate) struct Uids {
    retired: AtomicU64,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    next: usize,
    free: Vec<usize>,
}

/// What computes.
#[derive(Clone)]
pub(crate) enum Code {
    /// A sandboxed module.
    Sandboxed {
        /// What its instances are made of.
        sandbox: Arc<Sandbox>,
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
            ledger: Arc::new(Ledger::new(key.clone(), id, pack, "native")),
            key,
            tolerance: None,
        }
    }

    /// A sandboxed kernel of a pack, by name and version, which only admission can give.
    pub(crate) fn sandboxed(admitted: &AdmittedKernel<'_>, pack: (String, String)) -> Self {
        let gated = admitted.gated();
        let key = gated.key().clone();
        let ledger = Ledger::new(key.clone(), gated.id().to_owned(), pack, "wasmtime");
        let tolerance = key.known().and_then(|(op, _)| host_tolerance(op, key.output));
        let (sandbox, verified) = (admitted.sandbox().clone(), admitted.is_verified());
        Self {
            hash: gated.hash().to_owned(),
            key,
            plan: gated.plan().clone(),
            code: Code::Sandboxed { sandbox, verified },
            ledger: Arc::new(ledger),
            tolerance,
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
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// What cross-checks allow; `None` where the bytes are exact or there is no twin.
    pub(crate) fn tolerance(&self) -> Option<Tolerance> {
        self.tolerance
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
        matches!(self.code, Code::Native { .. })
    }

    /// Whether `name` means this kernel: its id, alone or qualified by its pack.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        name == self.id()
            || name.split_once('/').is_some_and(|(pack, id)| pack == self.pack() && id == self.id())
    }
}

impl PublishedKernel {
    pub(crate) fn new(prepared: PreparedKernel, uids: &Arc<Uids>) -> Self {
        Self { uid: uids.take(), ready: Ready::default(), prepared, uids: uids.clone() }
    }

    /// Dense among kernels that live at one time: workers index their instances by it.
    #[inline]
    pub(crate) fn uid(&self) -> usize {
        self.uid
    }

    /// Instances that no worker has yet.
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Workers that keep something of it: they have called it, and each holds a weak reference.
    pub(crate) fn workers(self: &Arc<Self>) -> usize {
        Arc::weak_count(self)
    }
}

impl Deref for PublishedKernel {
    type Target = PreparedKernel;

    #[inline]
    fn deref(&self) -> &PreparedKernel {
        &self.prepared
    }
}

impl Drop for PublishedKernel {
    fn drop(&mut self) {
        // Workers tell a kernel from an earlier one of its number by its address.
        self.uids.lock().free.push(self.uid);
        self.uids.retire();
    }
}

impl Uids {
    /// How many kernels are gone or out of service, for workers to notice.
    #[inline]
    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    /// Counts a kernel that is out of service.
    pub(crate) fn retire(&self) {
        self.retired.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> usize {
        let mut numbers = self.lock();
        numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        })
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
