//! Packs, trust and policy brought together into a host that is ready to run kernels.

use crate::{Error, embedded};
use ruvllm_host::{Host, HostConfig, InstallReport};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::path::{Path, PathBuf};

/// A host with its packs installed. Kernels can be called through it without any model.
#[derive(Clone)]
pub struct KernelSet {
    host: Host,
    installed: Vec<InstallReport>,
}

/// Chooses packs and the publishers they may come from; made by [`KernelSet::builder`].
#[derive(Clone, Debug)]
pub struct KernelSetBuilder {
    config: HostConfig,
    trust: TrustPolicy,
    core_pack: bool,
    packs: Vec<PathBuf>,
}

impl KernelSet {
    /// Starts from the built-in core pack, the built-in publisher and the default host.
    pub fn builder() -> KernelSetBuilder {
        KernelSetBuilder {
            config: HostConfig::default(),
            trust: TrustPolicy::builtin(),
            core_pack: true,
            packs: Vec::new(),
        }
    }

    /// The host: calls, explanations, statistics.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// What was installed, in order.
    pub fn installed(&self) -> &[InstallReport] {
        &self.installed
    }
}

impl KernelSetBuilder {
    /// Replaces the host's configuration: selection policy, limits, strictness, where machine code
    /// is kept and where modules are compiled.
    pub fn config(mut self, config: HostConfig) -> Self {
        self.config = config;
        self
    }

    /// Replaces the publishers that packs read from directories may come from. The core pack that
    /// the binary carries is always checked against the built-in publisher.
    pub fn trust(mut self, trust: TrustPolicy) -> Self {
        self.trust = trust;
        self
    }

    /// Leaves the built-in core pack out.
    pub fn without_core_pack(mut self) -> Self {
        self.core_pack = false;
        self
    }

    /// Adds the pack in `dir`. Later packs are preferred to earlier ones.
    pub fn pack(mut self, dir: impl Into<PathBuf>) -> Self {
        self.packs.push(dir.into());
        self
    }

    /// Reads, verifies, gates, admits, prepares and publishes the packs.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] where a pack cannot be read or verified, [`Error::Host`] where the host
    /// refuses it. Nothing is half installed: the set exists with all its packs or not at all.
    pub fn build(self) -> Result<KernelSet, Error> {
        let host = Host::new(self.config)?;
        let limits = PackLimits::default();
        let mut installed = Vec::new();
        if self.core_pack {
            let verified = embedded::core_pack(&limits)
                .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
                .map_err(|source| Error::Pack { pack: "(built in)".into(), source })?;
            installed.push(host.install_embedded(verified)?);
        }
        for dir in &self.packs {
            let verified = UnverifiedPack::read_dir(dir, &limits)
                .and_then(|pack| pack.verify(&self.trust, None))
                .map_err(|source| Error::Pack { pack: dir.display().to_string(), source })?;
            installed.push(host.install(verified)?);
        }
        Ok(KernelSet { host, installed })
    }
}

/// Where the user's system keeps what programs can make again: `ruvllm` below it is the place for
/// [`HostConfig::cache_dir`]. `None` where the user has no home.
pub fn default_cache_dir() -> Option<PathBuf> {
    use etcetera::BaseStrategy as _;
    Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("ruvllm"))
}

/// Reads a trust policy file.
///
/// # Errors
///
/// [`Error::Trust`] where the file cannot be read or is no policy.
pub fn read_trust_policy(path: &Path) -> Result<TrustPolicy, Error> {
    let refuse = |reason: String| Error::Trust { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    TrustPolicy::from_toml(&text).map_err(|error| refuse(error.to_string()))
}
