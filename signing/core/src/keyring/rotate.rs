//! Changes to a keyring: each gives the next one, with a serial of its own.

use super::{Keyring, RevokedKey};
use crate::publisher::Publisher;
use crate::{PackError, PublicKey};
use ruvllm_manifest::{Timestamp, escape_untrusted};

/// What becomes of a key that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retire {
    /// Its signatures count until then: for a planned change.
    At(Timestamp),
    /// It never counts again, also for what it signed before: for a key that leaked.
    Revoked {
        /// Why, for people.
        reason: String,
    },
}

impl Keyring {
    /// The same contents as the next serial, written at that time.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Keyring {
        Keyring { serial: self.serial.saturating_add(1), issued_at: now, ..self.clone() }
    }

    /// The next keyring, in which a publisher has a new key with the same packs and the same grant.
    ///
    /// `old` may be left out where the publisher has one key that is not revoked.
    ///
    /// # Errors
    /// [`PackError::Policy`] where there is no such publisher or key, more than one key could be
    /// meant, or the new key is there already or revoked.
    pub fn rotate(
        &self,
        publisher: &str,
        old: Option<&PublicKey>,
        new: PublicKey,
        retire: Retire,
        now: Timestamp,
    ) -> Result<Keyring, PackError> {
        let shown = escape_untrusted(publisher);
        let invalid = |message: String| PackError::Policy { message };
        if self.publishers.iter().any(|p| p.key == new) || self.is_revoked(&new) {
            return Err(invalid(format!("{new} is in the keyring already; make a new key")));
        }
        let candidates: Vec<usize> = (0..self.publishers.len())
            .filter(|&i| {
                let p = &self.publishers[i];
                p.name == publisher
                    && old.is_none_or(|old| p.key == *old)
                    && !self.is_revoked(&p.key)
            })
            .collect();
        let &[at] = candidates.as_slice() else {
            let what = match candidates.len() {
                0 => "has no such key that still counts",
                _ => "has several keys; say which one is replaced",
            };
            return Err(invalid(format!("`{shown}` {what}")));
        };
        let mut next = self.next(now);
        let entry = &mut next.publishers[at];
        let successor = Publisher { key: new, not_before: None, not_after: None, ..entry.clone() };
        match retire {
            Retire::At(until) => {
                entry.not_after = Some(entry.not_after.map_or(until, |earlier| earlier.min(until)));
            }
            Retire::Revoked { reason } => {
                next.revoked.push(RevokedKey { key: entry.key.clone(), since: now, reason });
            }
        }
        next.publishers.insert(at + 1, successor);
        Ok(next)
    }

    /// The next keyring, in which a key is revoked. The key need not be in the keyring.
    ///
    /// # Errors
    /// [`PackError::Policy`] where it is revoked already or one of the roots.
    pub fn revoke(
        &self,
        key: PublicKey,
        reason: String,
        now: Timestamp,
    ) -> Result<Keyring, PackError> {
        let invalid = |message: String| Err(PackError::Policy { message });
        if self.is_revoked(&key) {
            return invalid(format!("{key} is revoked already"));
        }
        if self.roots.keys().contains(&key) {
            return invalid(format!("{key} is a root; set other roots first"));
        }
        let mut next = self.next(now);
        next.revoked.push(RevokedKey { key, since: now, reason });
        Ok(next)
    }

    /// Whether the key was revoked.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.revoked.iter().any(|entry| entry.key == *key)
    }
}
