//! From bytes to a pack whose publishers and contents are known.

use crate::policy::TrustPolicy;
use crate::publisher::{self, Publisher};
use crate::{
    Clock, Envelope, KeyId, MANIFEST_FILE, PackError, SIGNATURE_FILE, UnverifiedPack, VersionFloor,
    Violation,
};
use ruvllm_manifest::{KernelEntry, ListedFile, Manifest, PackPath, Sha256Hex, Timestamp};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A pack that enough trusted publishers signed, with exactly the bytes they signed.
///
/// Only [`UnverifiedPack::verify`] makes one.
///
/// ```compile_fail,E0451
/// use ruvllm_manifest::Manifest;
/// use ruvllm_signing::VerifiedPack;
///
/// fn change_what_was_signed(manifest: Manifest, pack: VerifiedPack) -> VerifiedPack {
///     VerifiedPack { manifest, ..pack }
/// }
/// ```
#[deny(clippy::field_scoped_visibility_modifiers)]
pub struct VerifiedPack {
    manifest: Manifest,
    digest: Sha256Hex,
    signers: Vec<Signer>,
    native: bool,
    files: BTreeMap<PackPath, Cow<'static, [u8]>>,
}

/// What the documentation of [`VerifiedPack`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn change_what_was_signed(manifest: Manifest, pack: VerifiedPack) -> VerifiedPack {
    VerifiedPack { manifest, ..pack }
}

/// A trusted publisher whose signature counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// Its name in the policy.
    pub publisher: String,
    /// The key that it signed with.
    pub key_id: KeyId,
}

impl VerifiedPack {
    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The publishers whose signatures counted.
    pub fn publishers(&self) -> &[Signer] {
        &self.signers
    }

    /// Whether as many of them as the policy demands may ship native code.
    pub fn native_granted(&self) -> bool {
        self.native
    }

    /// SHA-256 of the manifest's bytes. It ties down every other file, so it names the pack.
    pub fn digest(&self) -> Sha256Hex {
        self.digest
    }

    /// The module of the kernel of that id.
    pub fn kernel_bytes(&self, id: &str) -> Option<&[u8]> {
        let kernel = self.manifest.kernel(id)?;
        self.files.get(&kernel.path).map(AsRef::as_ref)
    }

    /// The file of the graph of that id.
    pub fn graph_bytes(&self, id: &str) -> Option<&[u8]> {
        let graph = self.manifest.graph(id)?;
        self.files.get(&graph.path).map(AsRef::as_ref)
    }

    /// The tokenizer of the graph of that id, where it makes vectors of texts.
    pub fn graph_tokenizer(&self, id: &str) -> Option<&[u8]> {
        let embedding = self.manifest.graph(id)?.embedding.as_ref()?;
        self.files.get(&embedding.tokenizer.path).map(AsRef::as_ref)
    }

    /// The native library of a kernel for a target such as `x86_64-linux`. A pack that has any is
    /// only verified where its publishers may ship native code.
    pub fn native_library(&self, id: &str, target: &str) -> Option<&[u8]> {
        let library = self.manifest.kernel(id)?.platforms.native.as_ref()?.targets.get(target)?;
        self.files.get(&library.path).map(AsRef::as_ref)
    }

    /// Each kernel with its module.
    pub fn kernels(&self) -> impl Iterator<Item = (&KernelEntry, &[u8])> {
        self.manifest
            .kernels
            .iter()
            .filter_map(|kernel| Some((kernel, self.files.get(&kernel.path)?.as_ref())))
    }
}

impl fmt::Debug for VerifiedPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedPack")
            .field("name", &self.manifest.name)
            .field("version", &self.manifest.version)
            .field("digest", &self.digest)
            .field("signers", &self.signers)
            .finish_non_exhaustive()
    }
}

impl UnverifiedPack {
    /// Verifies the pack now, by the host's clock. See [`UnverifiedPack::verify_with`].
    ///
    /// # Errors
    /// As for [`UnverifiedPack::verify_with`].
    pub fn verify(
        self,
        policy: &TrustPolicy,
        floor: Option<&VersionFloor>,
    ) -> Result<VerifiedPack, PackError> {
        self.verify_with(policy, floor, Clock::System)
    }

    /// Verifies the pack as of a point in time. See [`UnverifiedPack::verify_with`].
    ///
    /// # Errors
    /// As for [`UnverifiedPack::verify_with`].
    pub fn verify_at(
        self,
        policy: &TrustPolicy,
        floor: Option<&VersionFloor>,
        now: Timestamp,
    ) -> Result<VerifiedPack, PackError> {
        self.verify_with(policy, floor, Clock::Fixed(now))
    }

    /// Verifies the pack by a clock, or without one.
    ///
    /// First the signatures: at least the policy's threshold of different publishers, none of their
    /// keys revoked, each within its validity, over the manifest's exact bytes. Only then the manifest is parsed, and then
    /// the publishers' scopes, their grants for native code, threads and graphs in kernels, the version floor, and the length and
    /// hash of every file are checked together. A signature by an unknown or revoked key or by a
    /// publisher outside of its validity or scope does not count, and does no harm where enough
    /// others do; a signature that names a trusted key and is not its is always a violation. Without
    /// a trustworthy clock, publishers with validity bounds count only where the policy says so, see
    /// [`Clock`].
    ///
    /// # Errors
    /// [`PackError::Rejected`] with every violation of the step that failed;
    /// [`PackError::FloorDamaged`] or [`PackError::Io`] where the floor cannot be read.
    pub fn verify_with(
        mut self,
        policy: &TrustPolicy,
        floor: Option<&VersionFloor>,
        clock: Clock,
    ) -> Result<VerifiedPack, PackError> {
        let (manifest_bytes, envelope_bytes) =
            match (self.take(MANIFEST_FILE), self.take(SIGNATURE_FILE)) {
                (Some(manifest), Some(envelope)) => (manifest, envelope),
                (manifest, envelope) => {
                    return Err(missing(manifest.is_none(), envelope.is_none()));
                }
            };
        let envelope = Envelope::parse(&envelope_bytes)?;
        let signers = check_signatures(&manifest_bytes, &envelope, policy, clock.now())?;

        let manifest = Manifest::parse(&manifest_bytes)
            .map_err(|e| PackError::Rejected(e.into_violations()))?;
        let mut violations = Vec::new();
        let signers = in_scope(&mut violations, &manifest, policy, signers);
        if let Some(floor) = floor {
            violations.extend(floor.objection(&manifest.name, &manifest.version)?);
        }
        let enough = |granted: fn(&Publisher) -> bool| {
            publisher::count(signers.iter().copied().filter(|p| granted(p))) >= policy.threshold()
        };
        let native = enough(|publisher| publisher.native);
        if !native {
            let at = ("native_not_granted", "platforms.native");
            refuse(&mut violations, &manifest, at, native_libraries);
        }
        if !enough(|publisher| publisher.threads) {
            refuse(&mut violations, &manifest, ("threads_not_granted", "threads"), threads);
        }
        if !enough(|publisher| publisher.wasi_nn) {
            let at = ("wasi_nn_not_granted", "platforms.wasmtime.features");
            refuse(&mut violations, &manifest, at, graphs);
        }
        check_files(&mut violations, &manifest, &self.files);
        if !violations.is_empty() {
            return Err(PackError::Rejected(violations));
        }
        Ok(VerifiedPack {
            digest: Sha256Hex::from_bytes(Sha256::digest(&manifest_bytes).into()),
            native,
            signers: signers
                .iter()
                .map(|p| Signer { publisher: p.name.clone(), key_id: p.key.key_id() })
                .collect(),
            manifest,
            files: self.files,
        })
    }

    /// Holds the files against a manifest: length and hash of each one that it lists, and that there are no
    /// others. It says nothing of who made them: whoever signs the manifest asks before.
    ///
    /// # Errors
    /// [`PackError::Rejected`] with every violation.
    pub fn check_files(&self, manifest: &Manifest) -> Result<(), PackError> {
        let mut violations = Vec::new();
        check_files(&mut violations, manifest, &self.files);
        if violations.is_empty() { Ok(()) } else { Err(PackError::Rejected(violations)) }
    }

    fn take(&mut self, name: &str) -> Option<Cow<'static, [u8]>> {
        let path: PackPath = name.parse().ok()?;
        self.files.remove(&path)
    }
}

fn missing(manifest: bool, envelope: bool) -> PackError {
    let violation = |code, file: &str, what: &str| Violation::new(code, file, what);
    let mut violations = Vec::new();
    if manifest {
        let what = "the pack has no manifest; is this the directory of a pack?";
        violations.push(violation("manifest_missing", MANIFEST_FILE, what));
    }
    if envelope {
        let what = "the pack is not signed; sign it with `ruvllm-pack sign`";
        violations.push(violation("signature_missing", SIGNATURE_FILE, what));
    }
    PackError::Rejected(violations)
}

/// The publishers whose signatures are good and in time: at least the threshold of different ones,
/// each key once.
fn check_signatures<'p>(
    manifest: &[u8],
    envelope: &Envelope,
    policy: &'p TrustPolicy,
    now: Option<Timestamp>,
) -> Result<Vec<&'p Publisher>, PackError> {
    let mut signers: Vec<&Publisher> = Vec::new();
    // A false signature is held against the pack in any case, one that does not count only where
    // too few others do.
    let mut forged = Vec::new();
    let mut ignored = Vec::new();
    for (i, (id, signature)) in envelope.signatures().iter().enumerate() {
        let at = format!("{SIGNATURE_FILE}: signatures[{i}]");
        let hinted = policy.publishers().iter().find(|p| p.key.key_id() == *id);
        // The id is a hint that anyone could have changed, so without one every key gets its try.
        let signer = match hinted {
            Some(publisher) => Some(publisher).filter(|p| p.key.verify(manifest, signature)),
            None => policy.publishers().iter().find(|p| p.key.verify(manifest, signature)),
        };
        match (signer, hinted) {
            (Some(publisher), _) => match objection(publisher, policy, now) {
                Some((code, what)) => ignored.push(Violation::new(code, at, what)),
                None if signers.iter().any(|other| other.key == publisher.key) => {
                    let name = &publisher.name;
                    let what = format!("`{name}` has signed already; each key counts once");
                    ignored.push(Violation::new("signature_repeated", at, what));
                }
                None => signers.push(publisher),
            },
            (None, Some(publisher)) => {
                let what = format!(
                    "not a signature of `{}` over this manifest: one of them was changed",
                    publisher.name
                );
                forged.push(Violation::new("signature_invalid", at, what));
            }
            (None, None) if policy.revoked().iter().any(|key| key.key_id() == *id) => {
                let what = format!("the key {id} was revoked: have the pack signed by another");
                ignored.push(Violation::new("key_revoked", at, what));
            }
            (None, None) => {
                let what = format!(
                    "the key {id} is in no publisher of the trust policy: add the publisher \
                     if you trust it"
                );
                ignored.push(Violation::new("signature_unknown_key", at, what));
            }
        }
    }
    let (have, need) = (publisher::count(signers.iter().copied()), policy.threshold());
    if forged.is_empty() && have >= need {
        return Ok(signers);
    }
    let mut violations = forged;
    violations.extend(ignored);
    if have < need && (need > 1 || violations.is_empty()) {
        violations.push(below_threshold(have, need));
    }
    Err(PackError::Rejected(violations))
}

/// Why a good signature of this publisher does not count.
fn objection(
    publisher: &Publisher,
    policy: &TrustPolicy,
    now: Option<Timestamp>,
) -> Option<(&'static str, String)> {
    let name = &publisher.name;
    if policy.is_revoked(&publisher.key) {
        let what = format!("the key of `{name}` was revoked: have the pack signed by another");
        return Some(("key_revoked", what));
    }
    let Some(now) = now else {
        let what = format!(
            "`{name}` is trusted for a time, and this host has no clock to trust: set the clock, \
             or accept that with without_clock = \"accept\" in the policy"
        );
        let refused = publisher.has_bounds() && !policy.accepts_without_clock();
        return refused.then_some(("clock_unknown", what));
    };
    match (publisher.not_before, publisher.not_after) {
        (Some(from), _) if now < from => {
            let what = format!("`{name}` is trusted from {from} on; it is {now}");
            Some(("publisher_not_yet_valid", what))
        }
        (_, Some(until)) if now >= until => {
            let what = format!("`{name}` was trusted until {until}; it is {now}");
            Some(("publisher_expired", what))
        }
        _ => None,
    }
}

fn below_threshold(have: usize, need: usize) -> Violation {
    let what = format!("{have} signature(s) count, the policy asks for {need}: have more signed");
    Violation::new("threshold_not_met", SIGNATURE_FILE, what)
}

/// Those signers that may sign a pack of this name.
fn in_scope<'p>(
    violations: &mut Vec<Violation>,
    manifest: &Manifest,
    policy: &TrustPolicy,
    signers: Vec<&'p Publisher>,
) -> Vec<&'p Publisher> {
    let (inside, outside): (Vec<_>, Vec<_>) =
        signers.into_iter().partition(|publisher| publisher.may_sign(&manifest.name));
    let have = publisher::count(inside.iter().copied());
    if have < policy.threshold() {
        for publisher in outside {
            let what = format!(
                "`{}` is not trusted for packs called `{}`: widen its `packs` if it should be",
                publisher.name, manifest.name
            );
            violations.push(Violation::new("publisher_out_of_scope", SIGNATURE_FILE, what));
        }
        if policy.threshold() > 1 {
            violations.push(below_threshold(have, policy.threshold()));
        }
    }
    inside
}

/// One violation for each kernel that asks for what its publishers may not have: what it says, at a field of its
/// entry.
fn refuse(
    violations: &mut Vec<Violation>,
    manifest: &Manifest,
    (code, field): (&'static str, &str),
    what: fn(&KernelEntry) -> Option<String>,
) {
    let found = manifest.kernels.iter().enumerate();
    violations.extend(found.filter_map(|(i, kernel)| {
        Some(Violation::new(code, format!("kernels[{i}].{field}"), what(kernel)?))
    }));
}

fn native_libraries(kernel: &KernelEntry) -> Option<String> {
    kernel.platforms.native.as_ref().map(|_| {
        format!(
            "`{}` brings code that runs outside of the sandbox, which its publishers are not \
             trusted for: use a pack without, or grant it with native = true",
            kernel.id
        )
    })
}

fn threads(kernel: &KernelEntry) -> Option<String> {
    (kernel.threads > 1).then(|| {
        format!(
            "`{}` asks for {} threads and needs the grant `threads`, which its publishers do not have: use a pack \
             without, or grant it with threads = true",
            kernel.id, kernel.threads
        )
    })
}

fn graphs(kernel: &KernelEntry) -> Option<String> {
    kernel.asks_for_graphs().then(|| {
        format!(
            "`{}` computes graphs of its pack, which its publishers are not trusted for: use a \
             pack without, or grant it with wasi_nn = true",
            kernel.id
        )
    })
}

/// Length and hash of every listed file, and no file that is not listed, manifest and signatures aside.
fn check_files(
    violations: &mut Vec<Violation>,
    manifest: &Manifest,
    files: &BTreeMap<PackPath, Cow<'static, [u8]>>,
) {
    let mut listed = BTreeSet::new();
    for ListedFile { path, size, hash, kernel } in manifest.files() {
        listed.insert(path);
        let at = path.as_str();
        let Some(bytes) = files.get(path) else {
            let what = format!("a file of `{kernel}` is missing; get the whole pack");
            violations.push(Violation::new("file_missing", at, what));
            continue;
        };
        if bytes.len() as u64 != size {
            let what = format!("{} bytes, the manifest says {size}", bytes.len());
            violations.push(Violation::new("file_size_mismatch", at, what));
        }
        let actual = Sha256Hex::from_bytes(Sha256::digest(bytes).into());
        if actual != hash {
            let what = format!("{actual}, the manifest says {hash}: the file was changed");
            violations.push(Violation::new("file_hash_mismatch", at, what));
        }
    }
    let own = [MANIFEST_FILE, SIGNATURE_FILE];
    let others = files.keys().filter(|path| !own.contains(&path.as_str()));
    for path in others.filter(|path| !listed.contains(path)) {
        let what = "the manifest does not list this file; remove it";
        violations.push(Violation::new("file_unlisted", path.as_str(), what));
    }
}
