//! A kernel as the registry holds it.
//!
//! The steps that lead here are types: `GatedKernel` (the gates let it through), `AdmittedKernel`
//! (it computed the right numbers on this machine), [`Kernel`]. The first two are made only by the
//! modules whose step they stand for, so that code which skips a step does not compile.

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
/// without being compiled or proved again.
#[derive(Clone)]
pub(crate) struct KernelCode {
    pub(crate) key: OpKey,
    /// Of its module; of a native twin, the version that it came with.
    pub(crate) hash: String,
    pub(crate) plan: CallPlan,
    pub(crate) body: Body,
    pub(crate) ledger: Arc<Ledger>,
    /// What cross-checks allow; `None` where the bytes are exact or there is no twin.
    pub(crate) tolerance: Option<Tolerance>,
}

/// A kernel of a published generation. It goes with the last snapshot that holds it, and the
/// instances that workers have of it go then too.
pub(crate) struct Kernel {
    /// Dense among kernels that live at one time: workers index their instances by it.
    pub(crate) uid: usize,
    /// Instances that no worker has yet.
    pub(crate) ready: Ready,
    code: KernelCode,
    uids: Arc<Uids>,
}

/// Gives numbers to kernels, and takes them back from those that are gone.
#[derive(Default)]
pub(crate) struct Uids {
    /// Counts kernels that are gone or out of service, for workers to notice.
    pub(crate) retired: AtomicU64,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    next: usize,
    free: Vec<usize>,
}

/// What computes.
#[derive(Clone)]
pub(crate) enum Body {
    /// A sandboxed module; `verified` where its numbers were held against an oracle.
    Sandbox { sandbox: Arc<Sandbox>, verified: bool },
    /// The host's own code.
    Native { op: Op },
}

impl KernelCode {
    /// The native twin of a catalogue operation.
    pub(crate) fn native(op: Op, variant: &Variant, version: &str) -> Self {
        let key = OpKey::of(op, variant);
        let id = format!("native:{}", variant.kernel);
        let hash = format!("{id} {version}");
        let pack = ("native".to_owned(), version.to_owned());
        Self {
            hash,
            plan: CallPlan::of_op(op, variant.inputs, variant.output),
            body: Body::Native { op },
            ledger: Arc::new(Ledger::new(key.clone(), id, pack, "native")),
            key,
            tolerance: None,
        }
    }

    /// A sandboxed kernel of a pack, by name and version, which only admission can give.
    pub(crate) fn sandboxed(admitted: AdmittedKernel, pack: (String, String)) -> Self {
        let (gated, sandbox, verified) = admitted.into_parts();
        let key = gated.key;
        let ledger = Ledger::new(key.clone(), gated.id, pack, "wasmtime");
        let tolerance = key.known().and_then(|(op, _)| host_tolerance(op, key.output));
        Self {
            hash: gated.hash,
            key,
            plan: gated.plan,
            body: Body::Sandbox { sandbox, verified },
            ledger: Arc::new(ledger),
            tolerance,
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

impl Kernel {
    pub(crate) fn new(code: KernelCode, uids: &Arc<Uids>) -> Self {
        Self { uid: uids.take(), ready: Ready::default(), code, uids: uids.clone() }
    }

    /// Workers that keep something of it: they have called it, and each holds a weak reference.
    pub(crate) fn workers(self: &Arc<Self>) -> usize {
        Arc::weak_count(self)
    }
}

impl Deref for Kernel {
    type Target = KernelCode;

    #[inline]
    fn deref(&self) -> &KernelCode {
        &self.code
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Workers tell a kernel from an earlier one of its number by its address.
        self.uids.lock().free.push(self.uid);
        self.uids.retired.fetch_add(1, Ordering::Relaxed);
    }
}

impl Uids {
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
