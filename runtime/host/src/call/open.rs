//! A kernel that a worker has called.

use crate::registry::kernel::PublishedKernel;
use crate::stats::{Counters, KernelStats};
use std::sync::{Arc, Weak};

/// What every worker keeps of a kernel that it has called: counters of its own, and no hold on the kernel.
pub(super) struct Open {
    alive: Weak<PublishedKernel>,
    pub(super) stats: Arc<KernelStats>,
    pub(super) counters: Arc<Counters>,
}

impl Open {
    pub(super) fn new(kernel: &Arc<PublishedKernel>) -> Self {
        let stats = kernel.stats().clone();
        let counters = stats.open();
        Self { alive: Arc::downgrade(kernel), stats, counters }
    }

    /// Whether it is of this kernel. Its weak reference keeps the address from being used again, so no other
    /// kernel can be taken for it.
    #[inline]
    pub(super) fn is_of(&self, kernel: &Arc<PublishedKernel>) -> bool {
        std::ptr::eq(self.alive.as_ptr(), &**kernel)
    }

    /// Whether no snapshot holds the kernel any more.
    pub(super) fn is_gone(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stats.close(&self.counters);
    }
}
