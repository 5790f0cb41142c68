//! Which pack: its name, version and digest.

use crate::team::ProviderPack;
use ruvllm_signing::VerifiedPack;
use serde::{Deserialize, Serialize};

/// Which pack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PackId {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `sha256:` and the hexadecimal hash of its manifest, which ties down every byte of it; of providers that the
    /// host application brings, which have no bytes, `blake3:` and a hash of their names and version.
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

    /// Of providers of the host application, which have no bytes to tie down: of their names and the version.
    pub(crate) fn of_providers(pack: &ProviderPack) -> Self {
        let version = pack.version.to_string();
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm provider pack v1");
        let ids = pack.providers.iter().map(|(id, _)| id.as_str());
        for text in [pack.name.as_str(), version.as_str()].into_iter().chain(ids) {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        let digest = format!("blake3:{}", hasher.finalize().to_hex());
        Self { name: pack.name.clone(), version, digest }
    }

    /// The digest of another pack, where that has the same name and version and other bytes.
    pub(crate) fn changed_from(&self, other: &Self) -> Option<String> {
        let is_same = self.name == other.name && self.version == other.version;
        (is_same && self.digest != other.digest).then(|| other.digest.clone())
    }

    /// Whether its version comes after that of another.
    #[cfg(feature = "supervisor")]
    pub(crate) fn is_newer(&self, other: &Self) -> bool {
        let version = |pack: &Self| semver::Version::parse(&pack.version).ok();
        let versions = version(self).zip(version(other));
        versions.is_some_and(|(mine, theirs)| mine.cmp_precedence(&theirs).is_gt())
    }
}
