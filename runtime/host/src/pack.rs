//! Which pack: its name, version and digest.

use ruvllm_signing::VerifiedPack;
use serde::{Deserialize, Serialize};

/// Which pack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PackId {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `sha256:` and the hexadecimal hash of its manifest, which ties down every byte of it.
    pub digest: String,
}

impl PackId {
    pub(crate) fn of(pack: &VerifiedPack) -> Self {
        let manifest = pack.manifest();
        Self {
            name: manifest.name.to_string(),
            version: manifest.version.to_string(),
            digest: pack.digest().to_string(),
        }
    }

    /// Whether its version comes after that of another.
    #[cfg(feature = "supervisor")]
    pub(crate) fn is_newer(&self, other: &Self) -> bool {
        let version = |pack: &Self| semver::Version::parse(&pack.version).ok();
        let versions = version(self).zip(version(other));
        versions.is_some_and(|(mine, theirs)| mine.cmp_precedence(&theirs).is_gt())
    }
}
