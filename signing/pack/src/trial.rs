//! A pack that nobody has signed yet, run through the host's own admission.
//!
//! A host takes verified packs only. For a trial the bytes are signed in memory by a key that is
//! made for it and dropped with it, and trusted by a policy that knows no other: the pack gets
//! exactly the treatment that it would get from a host that trusts its author.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "graphs")]
use ruvllm_graph::{GraphCaps, IsolatedProvider, KernelGraphs};
use ruvllm_host::graph::{GraphAdmission, KernelGraph};
use ruvllm_host::{DeviceClass, Host, HostConfig, HostError, Policy, Refusal};
use ruvllm_manifest::{MANIFEST_FILE, Manifest, SIGNATURE_FILE};
use ruvllm_signing::{
    PackLimits, PackPattern, Publisher, SecretKey, TrustPolicy, UnverifiedPack, VerifiedPack,
    sign_manifest,
};

use crate::ToolError;
use crate::lines::Lines;

/// Reads a pack: a directory, an archive, or the build of a pack crate.
///
/// # Errors
/// [`ToolError::Pack`], also where a pack crate has not been built or has been changed since.
pub(crate) fn read(given: &Path) -> Result<UnverifiedPack, ToolError> {
    Ok(UnverifiedPack::read(given, &PackLimits::with_graphs())?)
}

/// Which kernels of a pack a trial's host has, and which of those of one operation it asks.
pub(crate) enum Which {
    /// All of them; the first is asked.
    All,
    /// All of them; by operation and element types the kernel is named that is asked.
    Asked(BTreeMap<String, String>),
    /// Of variants of a kernel those that a live server has here.
    Live,
}

/// Computes a graph under limits where this program has started itself for that, as a trial does.
pub fn as_graph_process() -> Option<ExitCode> {
    #[cfg(feature = "graphs")]
    if std::env::args_os().nth(1).is_some_and(|first| first == IsolatedProvider::COMMAND) {
        return Some(ruvllm_graph::graph_process());
    }
    None
}

/// What admits graphs here: as the program does, in processes of their own, which the system stops at the
/// graph's limits. `None` where this build computes none.
fn graph_admission() -> Option<Box<dyn GraphAdmission>> {
    #[cfg(feature = "graphs")]
    let admission = {
        let provider = IsolatedProvider::this_program(1);
        Some(Box::new(KernelGraphs::new(provider, GraphCaps::default())) as Box<_>)
    };
    #[cfg(not(feature = "graphs"))]
    let admission = None;
    admission
}

/// The graphs of a pack, admitted once: whether a kernel computes them or not, and for the host, which asks where
/// one does.
#[derive(Debug, Default)]
pub(crate) struct TriedGraphs {
    admitted: Mutex<Vec<KernelGraph>>,
    /// What speaks against each that was not admitted.
    pub(crate) refusals: Vec<Refusal>,
}

impl TriedGraphs {
    /// Tries all graphs of a pack. `None` where there are some and this build computes none.
    pub(crate) fn of(pack: &VerifiedPack) -> Option<TriedGraphs> {
        if pack.manifest().graphs.is_empty() {
            return Some(TriedGraphs::default());
        }
        Some(match graph_admission()?.admit(pack) {
            Ok(admitted) => TriedGraphs { admitted: Mutex::new(admitted), refusals: Vec::new() },
            Err(refusals) => TriedGraphs { refusals, ..TriedGraphs::default() },
        })
    }
}

impl GraphAdmission for TriedGraphs {
    fn admit(&self, _: &VerifiedPack) -> Result<Vec<KernelGraph>, Vec<Refusal>> {
        if !self.refusals.is_empty() {
            return Err(self.refusals.clone());
        }
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *admitted))
    }
}

/// Installs the files of a pack on a host of their own; a host without fallback, that does not
/// check kernels by itself. Without a seed admission's calls cannot be predicted. Where a kernel traps, its
/// source line is told. Graphs of the pack are admitted, too, whether a kernel computes them or not.
///
/// # Errors
/// [`ToolError::Pack`] and [`ToolError::Host`], as a host that trusts the author would refuse it;
/// [`ToolError::NoGraphs`].
pub(crate) fn admit(
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
    admission_seed: Option<u64>,
    lines: &Lines,
    which: Which,
) -> Result<Host, ToolError> {
    let pack = trusted(files)?;
    let graphs = Arc::new(TriedGraphs::of(&pack).ok_or(ToolError::NoGraphs)?);
    let (name, version) = (pack.manifest().name.to_string(), pack.manifest().version.to_string());
    // The host that the pack is for.
    let class = match pack.manifest().kernels.iter().any(|kernel| kernel.threads > 1) {
        true => DeviceClass::Threads,
        false => DeviceClass::default(),
    };
    let all_variants = !matches!(which, Which::Live);
    let config = HostConfig {
        policy: match which {
            Which::All | Which::Live => Policy::SandboxFirst,
            Which::Asked(kernels) => Policy::Pinned(kernels),
        },
        strict: true,
        quarantine_after: u32::MAX,
        cross_check_every: 0,
        admission_seed,
        all_variants,
        graphs: Some(graphs.clone()),
        runtime_version: runtime_version(pack.manifest()),
        ..class.config()
    };
    let host = Host::new(config)?;
    host.install(pack).map_err(|error| lines.name_refusals(error))?;
    // Those that no kernel on this host asks for are told here.
    match &graphs.refusals[..] {
        [] => Ok(host),
        refusals => {
            Err(HostError::Refused { pack: name, version, refusals: refusals.to_vec() }.into())
        }
    }
}

/// The files of a pack as if somebody who is trusted had signed them.
///
/// # Errors
/// [`ToolError::Pack`], but for what is about signatures.
pub(crate) fn trusted(
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> Result<VerifiedPack, ToolError> {
    let mut files: Vec<(String, Cow<'static, [u8]>)> = files
        .into_iter()
        .filter(|(path, _)| path != SIGNATURE_FILE)
        .map(|(path, bytes)| (path, Cow::Owned(bytes)))
        .collect();
    let manifest = files.iter().find(|(path, _)| path == MANIFEST_FILE);
    let manifest = manifest.map_or(&[][..], |(_, bytes)| bytes.as_ref());
    let key = SecretKey::generate()?;
    let envelope = sign_manifest(manifest, &[&key])?.to_json().into_bytes();
    files.push((SIGNATURE_FILE.to_owned(), Cow::Owned(envelope)));
    let everything: PackPattern = "*".parse()?;
    let publisher = Publisher {
        name: "trial".to_owned(),
        key: key.public_key(),
        packs: vec![everything],
        // A trial is about the modules; nothing loads a native library.
        native: true,
        threads: true,
        wasi_nn: true,
        not_before: None,
        not_after: None,
    };
    let policy = TrustPolicy::new(vec![publisher], 1)?;
    Ok(UnverifiedPack::from_files(files, &PackLimits::with_graphs())?.verify(&policy, None)?)
}

/// A version that the manifest admits: this runtime's own where it does, else the oldest. The trial
/// is about the kernels; that a pack is for a newer runtime is no fault of theirs.
fn runtime_version(manifest: &Manifest) -> semver::Version {
    let here = HostConfig::default().runtime_version;
    let admits = here >= manifest.min_runtime_version
        && manifest.max_runtime_version.as_ref().is_none_or(|max| here < *max);
    if admits { here } else { manifest.min_runtime_version.clone() }
}
