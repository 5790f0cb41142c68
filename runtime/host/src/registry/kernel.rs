//! A kernel as a snapshot holds it.

use crate::code::PreparedKernel;
use crate::instance::pool::InstancePool;
use crate::threads::lock;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A kernel of a published generation. It goes with the last snapshot that holds it, and the
/// instances that workers have of it go then too.
///
/// ```compile_fail,E0616
/// use ruvllm_host::lifecycle::{PreparedKernel, PublishedKernel};
///
/// fn replace(published: &mut PublishedKernel, prepared: PreparedKernel) {
///     published.prepared = prepared;
/// }
/// ```
#[deny(clippy::field_scoped_visibility_modifiers)]
pub struct PublishedKernel {
    uid: usize,
    pool: InstancePool,
    prepared: PreparedKernel,
    uids: Arc<Uids>,
}

/// What the documentation of [`PublishedKernel`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn replace(published: &mut PublishedKernel, prepared: PreparedKernel) {
    published.prepared = prepared;
}

/// Gives numbers to kernels, and takes them back from those that are gone.
pub(crate) struct Uids {
    /// Counts kernels that are gone or out of service, for workers to notice.
    retired: Arc<AtomicU64>,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    next: usize,
    free: Vec<usize>,
}

impl PublishedKernel {
    pub(crate) fn new(prepared: PreparedKernel, uids: &Arc<Uids>) -> Self {
        Self { uid: uids.take(), pool: InstancePool::default(), prepared, uids: uids.clone() }
    }

    /// Dense among kernels that live at one time: workers index their instances by it.
    #[inline]
    pub(crate) fn uid(&self) -> usize {
        self.uid
    }

    /// Instances that no worker has yet.
    pub(crate) fn pool(&self) -> &InstancePool {
        &self.pool
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
        lock(&self.uids.numbers).free.push(self.uid);
        self.uids.retired.fetch_add(1, Relaxed);
    }
}

impl Uids {
    pub(crate) fn new(retired: Arc<AtomicU64>) -> Self {
        Self { retired, numbers: Mutex::default() }
    }

    fn take(&self) -> usize {
        let mut numbers = lock(&self.numbers);
        numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        })
    }
}
