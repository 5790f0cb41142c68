//! Whose packs are taken and which of them: a trust policy and a lock, which an operator may replace while a
//! supervisor is at work.

use ruvllm_signing::{
    PackError, PackLock, TrustPolicy, UnverifiedPack, VerifiedPack, VersionFloor, escape_untrusted,
};
use std::collections::BTreeSet;

/// A trust policy and a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// The publishers that packs may come from.
    pub trust: TrustPolicy,
    /// Refuses packs that it does not pin by digest.
    pub lock: Option<PackLock>,
}

impl Acceptance {
    /// A pack that they accept.
    pub(super) fn verify(
        &self,
        pack: UnverifiedPack,
        floor: Option<&VersionFloor>,
    ) -> Result<VerifiedPack, PackError> {
        let verified = pack.verify(&self.trust, floor)?;
        if let Some(lock) = &self.lock {
            lock.check(&verified)?;
        }
        Ok(verified)
    }

    /// What is different in `new`, in words; nothing where it is the same.
    pub(super) fn changes(&self, new: &Acceptance) -> Vec<String> {
        let mut changes = Vec::new();
        if self.trust != new.trust {
            changes.push(format!("trust policy{}", publishers(&self.trust, &new.trust)));
        }
        if self.lock != new.lock {
            changes.push("lock of packs".to_owned());
        }
        changes
    }
}

/// Which publishers came and went.
fn publishers(old: &TrustPolicy, new: &TrustPolicy) -> String {
    let names = |policy: &TrustPolicy| -> BTreeSet<String> {
        policy.publishers().iter().map(|publisher| publisher.name.clone()).collect()
    };
    let (old, new) = (names(old), names(new));
    let mut parts = Vec::new();
    for (what, names) in [("with", new.difference(&old)), ("without", old.difference(&new))] {
        let names: Vec<String> = names.map(|name| escape_untrusted(name)).collect();
        if !names.is_empty() {
            parts.push(format!(" {what} {}", names.join(", ")));
        }
    }
    parts.join(" and")
}
