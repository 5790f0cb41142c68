//! Instances that were made ahead of the calls that will want them.

use super::Instance;
use crate::threads::lock;
use std::sync::Mutex;

/// Instances of one kernel that no worker has taken yet, in sets for one worker each.
#[derive(Default)]
pub(crate) struct InstancePool(Mutex<Vec<Vec<Instance>>>);

impl InstancePool {
    /// For how many workers there are some.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Keeps a set for one worker.
    pub(crate) fn put(&self, set: Vec<Instance>) {
        lock(&self.0).push(set);
    }

    /// What was made ahead for a worker.
    #[cold]
    pub(crate) fn take(&self) -> Vec<Instance> {
        lock(&self.0).pop().unwrap_or_default()
    }

    /// All that was made ahead.
    pub(crate) fn take_all(&self) -> Vec<Vec<Instance>> {
        std::mem::take(&mut lock(&self.0))
    }
}
