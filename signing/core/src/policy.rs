//! Who is trusted, for which packs, and when.

use crate::keyring::{Keyring, VerifiedKeyring};
use crate::publisher::{self, MAX_PUBLISHERS, PackPattern, Publisher};
use crate::{PackError, PublicKey};
use ruvllm_manifest::Timestamp;

/// The publisher of [`TrustPolicy::builtin`].
pub const BUILTIN_PUBLISHER: &str = "ruvllm";

/// That of `keys/release.pub.pem`, in the form that every build reads.
const BUILTIN_KEY: &str = "ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk=";

/// The publishers that a host trusts and how many of them must agree.
///
/// As a file it is TOML, which is the feature `toml`:
///
/// ```toml
/// version = 1
/// threshold = 1                          # optional, 1
/// without_clock = "refuse"               # optional; or "accept", see `Clock`
/// revoked = []                           # optional: keys that never count again
///
/// [[publishers]]
/// name = "acme"
/// key = "ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk="
/// packs = ["acme-*"]                     # `*` stands for any run of characters
/// native = false                         # optional: may also ship native code
/// threads = false                        # optional: its kernels may have threads
/// wasi_nn = false                        # optional: its kernels may compute graphs of their pack
/// not_before = "2026-01-01T00:00:00Z"    # optional, inclusive
/// not_after = "2028-01-01T00:00:00Z"     # optional, exclusive
///
/// [keyring]                              # optional: more publishers, and revocations
/// file = "keyring.json"                  # from the policy file's directory
/// roots = ["ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk="]
/// threshold = 1                          # optional, 1
/// ```
///
/// A file with a keyring is read with [`TrustPolicy::read_file`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustPolicy {
    publishers: Vec<Publisher>,
    threshold: usize,
    revoked: Vec<PublicKey>,
    accepts_without_clock: bool,
    keyring: Option<KeyringUse>,
}

/// The keyring that a policy was made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyringUse {
    /// Its name.
    pub name: String,
    /// Its serial number.
    pub serial: u64,
    /// When its publishers cease to count.
    pub expires_at: Option<Timestamp>,
}

impl TrustPolicy {
    /// A policy of these publishers, of whom `threshold` must have signed a pack.
    ///
    /// Entries of one name with different keys are one publisher and count once.
    ///
    /// # Errors
    /// [`PackError::Policy`] where there is no publisher, two share a key (two names for one key
    /// would make one signature count twice), or the threshold can not be met or is 0.
    pub fn new(publishers: Vec<Publisher>, threshold: usize) -> Result<TrustPolicy, PackError> {
        if publishers.is_empty() {
            return Err(invalid(format!("name 1 to {MAX_PUBLISHERS} publishers")));
        }
        publisher::check(&publishers)?;
        let count = publisher::count(&publishers);
        if !(1..=count).contains(&threshold) {
            return Err(invalid(format!("threshold = {threshold}; use 1 to {count} (publishers)")));
        }
        Ok(TrustPolicy {
            publishers,
            threshold,
            revoked: Vec::new(),
            accepts_without_clock: false,
            keyring: None,
        })
    }

    /// Trust in the project's release key alone, for packs `ruvllm-*`, in the sandbox only.
    pub fn builtin() -> TrustPolicy {
        let entry = BUILTIN_KEY
            .parse::<PublicKey>()
            .and_then(|key| Ok((key, "ruvllm-*".parse::<PackPattern>()?)));
        let publishers = entry.into_iter().map(|(key, pattern)| Publisher {
            name: BUILTIN_PUBLISHER.to_owned(),
            key,
            packs: vec![pattern],
            native: false,
            threads: false,
            wasi_nn: false,
            not_before: None,
            not_after: None,
        });
        // A test holds the embedded key to be good; were it not, nobody would be trusted.
        TrustPolicy {
            publishers: publishers.collect(),
            threshold: 1,
            revoked: Vec::new(),
            accepts_without_clock: false,
            keyring: None,
        }
    }

    /// The publishers and revocations of a keyring.
    ///
    /// # Errors
    /// [`PackError::Policy`] as for [`TrustPolicy::new`].
    pub fn from_keyring(
        keyring: &VerifiedKeyring,
        threshold: usize,
    ) -> Result<TrustPolicy, PackError> {
        TrustPolicy::merged(Vec::new(), keyring, threshold)
    }

    /// These publishers and those of a keyring, with its revocations. A publisher of the keyring
    /// counts no longer than the keyring does.
    pub(crate) fn merged(
        mut publishers: Vec<Publisher>,
        keyring: &VerifiedKeyring,
        threshold: usize,
    ) -> Result<TrustPolicy, PackError> {
        let Keyring { name, serial, expires_at, publishers: more, revoked, .. } =
            keyring.document();
        let ends = |until: Option<Timestamp>| match (until, *expires_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        publishers.extend(
            more.iter()
                .cloned()
                .map(|publisher| Publisher { not_after: ends(publisher.not_after), ..publisher })
                // One that would begin after the keyring's end is nobody's publisher yet.
                .filter(|p| !matches!((p.not_before, p.not_after), (Some(a), Some(b)) if a >= b)),
        );
        let mut policy = TrustPolicy::new(publishers, threshold)?;
        policy.revoked = revoked.iter().map(|entry| entry.key.clone()).collect();
        policy.keyring =
            Some(KeyringUse { name: name.to_string(), serial: *serial, expires_at: *expires_at });
        Ok(policy)
    }

    /// Takes keys out for good: they never count, whatever else the policy says.
    #[must_use]
    pub fn with_revoked(mut self, keys: impl IntoIterator<Item = PublicKey>) -> TrustPolicy {
        self.revoked.extend(keys);
        self
    }

    /// Lets publishers with validity bounds count where there is no trustworthy clock, as
    /// `without_clock = "accept"` does.
    #[must_use]
    pub fn with_accepts_without_clock(mut self, accepts: bool) -> TrustPolicy {
        self.accepts_without_clock = accepts;
        self
    }

    /// The trusted publishers, each key an entry of its own.
    pub fn publishers(&self) -> &[Publisher] {
        &self.publishers
    }

    /// How many different publishers must have signed.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// The keys that never count.
    pub fn revoked(&self) -> &[PublicKey] {
        &self.revoked
    }

    /// Whether the key was revoked.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.revoked.contains(key)
    }

    /// Whether publishers with validity bounds count without a trustworthy clock.
    pub fn accepts_without_clock(&self) -> bool {
        self.accepts_without_clock
    }

    /// The keyring that the policy was made with.
    pub fn keyring(&self) -> Option<&KeyringUse> {
        self.keyring.as_ref()
    }
}

fn invalid(message: String) -> PackError {
    PackError::Policy { message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretKey;

    fn policy(body: &str) -> Result<TrustPolicy, PackError> {
        TrustPolicy::from_toml(&format!("version = 1\n{body}"))
    }

    fn publisher(name: &str, more: &str) -> String {
        let key = SecretKey::generate().unwrap().public_key();
        format!("[[publishers]]\nname = \"{name}\"\nkey = \"{key}\"\npacks = [\"*\"]\n{more}\n")
    }

    #[test]
    fn the_builtin_policy_trusts_the_release_key_for_our_own_packs() {
        let policy = TrustPolicy::builtin();
        let publisher = &policy.publishers()[0];
        assert_eq!(publisher.name, BUILTIN_PUBLISHER);
        assert!(publisher.may_sign(&"ruvllm-core-kernels".parse().unwrap()));
        assert!(!publisher.may_sign(&"acme-kernels".parse().unwrap()));
        assert!(!publisher.native && !publisher.threads);
        let pem = include_str!("../keys/release.pub.pem");
        assert_eq!(publisher.key, PublicKey::from_pem(pem).unwrap());
    }

    #[test]
    fn the_documented_file_parses() {
        let text = concat!(
            "version = 1\nthreshold = 1\n[[publishers]]\nname = \"acme\"\n",
            "key = \"ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk=\"\n",
            "packs = [\"acme-*\"]\nnative = false\nthreads = false\nnot_before = \"2026-01-01T00:00:00Z\"\n",
            "not_after = \"2028-01-01T00:00:00Z\"\n",
        );
        let policy = TrustPolicy::from_toml(text).unwrap();
        assert_eq!(policy.publishers()[0].packs[0].to_string(), "acme-*");
        assert!(policy.publishers()[0].not_after.is_some());
    }

    #[test]
    fn patterns_match_whole_names() {
        let matches = |pattern: &str, name: &str| {
            pattern.parse::<PackPattern>().unwrap().matches(&name.parse().unwrap())
        };
        assert!(matches("acme-*", "acme-x"));
        assert!(!matches("acme-*", "acme"));
        assert!(!matches("acme-*", "not-acme-x"));
        assert!(matches("*", "anything"));
        assert!(matches("a*b*c", "a1b2b3c"));
        assert!(!matches("a*b*c", "a1b2"));
        assert!(!matches("a*a", "a"));
        assert!(matches("exact", "exact") && !matches("exact", "exactly"));
        assert!("Acme".parse::<PackPattern>().is_err() && "".parse::<PackPattern>().is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let one = publisher("a", "");
        assert!(policy(&one).is_ok());
        for (bad, why) in [
            ("publishers = []".to_owned(), "name 1 to"),
            (format!("threshold = 0\n{one}"), "threshold = 0"),
            (format!("threshold = 2\n{one}"), "threshold = 2"),
            (format!("{one}{one}"), "two publishers are called"),
            (format!("{one}{}", one.replace("name = \"a\"", "name = \"b\"")), "the same key"),
            (publisher("a", "extra = 1"), "unknown field"),
            (publisher("a", "native = \"yes\""), "invalid type"),
            (publisher("a\\u001b", ""), "printable"),
            (publisher("a", "not_before = \"tomorrow\""), "RFC 3339"),
            (
                publisher(
                    "a",
                    "not_before = \"2026-01-01T00:00:00Z\"\nnot_after = \"2025-01-01T00:00:00Z\"",
                ),
                "never valid",
            ),
            (one.replace("ed25519:", "rsa:"), "ed25519:<base64"),
        ] {
            let error = policy(&bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}\n{error}");
        }
        assert!(TrustPolicy::from_toml(&format!("version = 2\n{one}")).is_err());
        let identity = format!("ed25519:{}=", "AQAA".to_owned() + &"A".repeat(39));
        let weak = format!("[[publishers]]\nname = \"w\"\nkey = \"{identity}\"\npacks = [\"*\"]");
        assert_eq!(policy(&weak).unwrap_err().code(), "key_weak");
    }
}
