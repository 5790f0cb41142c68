//! Packs, trust and policy brought together into a host that is ready to run kernels.

use crate::{Error, embedded};
use ruvllm_engine::KvPolicy;
use ruvllm_host::{Host, HostConfig, InstallReport, OpKey, SupervisorConfig};
use ruvllm_signing::{Clock, PackLimits, PackLock, TrustPolicy, UnverifiedPack, VersionFloor};
use std::fmt;
use std::path::{Path, PathBuf};

/// A host with its packs installed. Kernels can be called through it without any model.
///
/// ```
/// use ruvllm::KernelSet;
/// use ruvllm::host::OpKey;
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let kernels = KernelSet::builder().build()?; // the core pack, which is built in
/// let explanation = kernels.host().explain(&OpKey::rmsnorm_f32());
/// assert_eq!(explanation.selected.as_deref(), Some("rmsnorm_f32"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KernelSet {
    host: Host,
    installed: Vec<InstallReport>,
    changed: Vec<ChangedPack>,
    trust: TrustPolicy,
    floor: Option<VersionFloor>,
    lock: Option<PackLock>,
}

/// A pack whose bytes are not those that its version had before.
///
/// ```
/// # fn main() -> Result<(), ruvllm::Error> {
/// let set = ruvllm::KernelSet::builder().build()?;
/// for changed in set.changed() {
///     eprintln!("warning: {changed}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPack {
    /// Its name.
    pub pack: String,
    /// Its version.
    pub version: String,
    /// The digest of the pack that was active here before.
    pub before: String,
    /// The digest of this one.
    pub now: String,
}

impl fmt::Display for ChangedPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChangedPack { pack, version, before, now } = self;
        write!(
            f,
            "{pack} {version} has other bytes than the {pack} {version} that ran here before ({now}, \
             before {before}): whoever changes a pack gives it another version"
        )
    }
}

/// Chooses packs and the publishers they may come from; made by [`KernelSet::builder`].
///
/// ```no_run
/// use ruvllm::{KernelSet, Runtime};
/// use std::path::Path;
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let trust = ruvllm::read_trust_policy(Path::new("trust.toml"), None)?;
/// let kernels = KernelSet::builder().trust(trust).pack("my-kernels/dist");
/// let runtime = Runtime::builder().kernels(kernels).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KernelSetBuilder {
    config: HostConfig,
    trust: TrustPolicy,
    core_pack: bool,
    called: Option<Vec<OpKey>>,
    packs: Vec<PathBuf>,
    packs_come_later: bool,
    lock: Option<PackLock>,
    floor: Option<VersionFloor>,
}

impl KernelSet {
    /// Starts from the built-in core pack, the built-in publisher and the default host.
    pub fn builder() -> KernelSetBuilder {
        KernelSetBuilder {
            config: HostConfig::default(),
            trust: TrustPolicy::builtin(),
            core_pack: true,
            called: None,
            packs: Vec::new(),
            packs_come_later: false,
            lock: None,
            floor: None,
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

    /// The packs that have other bytes than a pack of that name and version that was active here before,
    /// as far as a [version floor](KernelSetBuilder::version_floor) remembers.
    pub fn changed(&self) -> &[ChangedPack] {
        &self.changed
    }

    /// What a [`ruvllm_host::Supervisor`] over the host needs to hold packs that come later to the same
    /// trust policy, version floor and lock as those that were added; history and packs are kept in
    /// `directory`.
    pub fn supervisor_config(&self, directory: impl Into<PathBuf>) -> SupervisorConfig {
        SupervisorConfig {
            floor: self.floor.clone(),
            lock: self.lock.clone(),
            ..SupervisorConfig::new(directory, self.trust.clone())
        }
    }
}

impl KernelSetBuilder {
    /// Replaces the host's configuration: selection policy, limits, strictness, where machine code
    /// is kept and where modules are compiled.
    pub fn config(mut self, config: HostConfig) -> Self {
        self.config = config;
        self
    }

    /// Of the core pack, prepares only the kernels that a model calls whose keys and values are stored by
    /// `kv`: the first text comes earlier. [`crate::RuntimeBuilder::build`] does it.
    pub fn for_models(mut self, kv: &KvPolicy) -> Self {
        self.called = Some(ruvllm_engine::operations(kv));
        self
    }

    /// Lowers [`HostConfig::kernel_memory`] to at most so many bytes.
    pub(crate) fn kernel_memory(mut self, bytes: usize) -> Self {
        self.config.kernel_memory = self.config.kernel_memory.min(bytes);
        self
    }

    /// Replaces the publishers that packs read from files may come from. The core pack that the
    /// binary carries is always checked against the built-in publisher.
    pub fn trust(mut self, trust: TrustPolicy) -> Self {
        self.trust = trust;
        self
    }

    /// Leaves the built-in core pack out.
    pub fn without_core_pack(mut self) -> Self {
        self.core_pack = false;
        self
    }

    /// Adds the pack in a directory or an `.rkp` file. Later packs are preferred to earlier ones.
    pub fn pack(mut self, path: impl Into<PathBuf>) -> Self {
        self.packs.push(path.into());
        self
    }

    /// Lets the policy pin kernels that are not there yet, because packs come later, as through a
    /// [`ruvllm_host::Supervisor`]. Until such a kernel comes, its operation is answered as without the pin;
    /// [`RegistrySnapshot::unknown_pins`](ruvllm_host::RegistrySnapshot::unknown_pins) says which are missing.
    pub fn packs_come_later(mut self) -> Self {
        self.packs_come_later = true;
        self
    }

    /// Takes of the packs added only those that the lock pins, by digest.
    pub fn lock(mut self, lock: PackLock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Refuses packs that are older than what has been active here, and remembers what becomes
    /// active.
    pub fn version_floor(mut self, floor: VersionFloor) -> Self {
        self.floor = Some(floor);
        self
    }

    /// Reads, verifies, gates, admits, prepares and publishes the packs.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] where a pack cannot be read or verified, [`Error::Host`] where the host
    /// refuses it, or is told to pin a kernel that is not there and cannot
    /// [come later](Self::packs_come_later), or one for an operation that is not there. Nothing is half
    /// installed: the set exists with all its packs or not at all.
    pub fn build(self) -> Result<KernelSet, Error> {
        let host = Host::new(self.config)?;
        let limits = PackLimits::default();
        let mut installed = Vec::new();
        if self.core_pack {
            let verified = embedded::core_pack(&limits)
                .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
                .map_err(|source| Error::Pack { pack: "(built in)".into(), source })?;
            installed.push(host.install_embedded(verified, self.called.as_deref())?);
        }
        let limits = PackLimits::with_graphs();
        let KernelSetBuilder { trust, floor, lock, packs_come_later, .. } = self;
        let mut active = Vec::new();
        for path in &self.packs {
            let named = |source| Error::Pack { pack: path.display().to_string(), source };
            let verified = UnverifiedPack::read(path, &limits)
                .and_then(|pack| pack.verify(&trust, floor.as_ref()))
                .map_err(named)?;
            if let Some(lock) = &lock {
                lock.check(&verified).map_err(named)?;
            }
            let manifest = verified.manifest();
            let digest = verified.digest();
            active.push((path, manifest.name.clone(), manifest.version.clone(), digest));
            installed.push(host.install(verified)?);
        }
        match packs_come_later {
            true => host.snapshot().check_pinned_operations()?,
            false => host.snapshot().check_pins()?,
        }
        // Only what is active in the end raises its floor: a set that fails leaves all as it was.
        let mut changed = Vec::new();
        if let Some(floor) = &floor {
            for (path, name, version, digest) in active {
                let named = |source| Error::Pack { pack: path.display().to_string(), source };
                floor.raise_to(&name, &version).map_err(named)?;
                if let Some(before) = floor.note_digest(&name, &version, &digest).map_err(named)? {
                    changed.push(ChangedPack {
                        pack: name.to_string(),
                        version: version.to_string(),
                        before: before.to_string(),
                        now: digest.to_string(),
                    });
                }
            }
        }
        Ok(KernelSet { host, installed, changed, trust, floor, lock })
    }
}

/// Where the user's system keeps what programs can make again: `ruvllm` below it is the place for
/// [`HostConfig::cache_dir`]. `None` where the user has no home.
pub fn default_cache_dir() -> Option<PathBuf> {
    use etcetera::BaseStrategy as _;
    Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("ruvllm"))
}

/// Where the user's system keeps what programs have to remember: `ruvllm` below it is the place for
/// a [`VersionFloor`]. `None` where the user has no home.
pub fn default_state_dir() -> Option<PathBuf> {
    use etcetera::BaseStrategy as _;
    let places = etcetera::choose_base_strategy().ok()?;
    Some(places.state_dir().unwrap_or_else(|| places.data_dir()).join("ruvllm"))
}

/// Reads a trust policy file and the keyring that it may name, which must not be older than the
/// newest one that `seen` remembers. It needs the feature `toml`.
///
/// # Errors
///
/// [`Error::Trust`] where the file cannot be read or is no policy.
pub fn read_trust_policy(path: &Path, seen: Option<&VersionFloor>) -> Result<TrustPolicy, Error> {
    TrustPolicy::read_file(path, seen, Clock::System)
        .map_err(|error| Error::Trust { path: path.to_owned(), reason: error.to_string() })
}
