//! Which constants instances have taken up, so that new instances can be given them ahead of any call.

use crate::op::call::{Resident, ResidentBytes};
use crate::threads::lock;
use std::sync::{Mutex, Weak};

/// The constants that instances of an operation's kernels have taken up, first to last.
#[derive(Default)]
pub(crate) struct Constants(Mutex<Vec<Weak<ResidentBytes>>>);

impl Constants {
    /// Notes a constant, for as long as it lives.
    pub(crate) fn note(&self, constant: &Resident) {
        let constant = constant.downgrade();
        let mut noted = lock(&self.0);
        if noted.iter().any(|other| other.ptr_eq(&constant)) {
            return;
        }
        if noted.len() == noted.capacity() {
            noted.retain(|other| other.strong_count() > 0);
        }
        noted.push(constant);
    }

    /// Those that live.
    pub(crate) fn living(&self) -> Vec<Resident> {
        lock(&self.0).iter().filter_map(Resident::upgrade).collect()
    }
}
