//! Which of the kernels of one operation a host takes of a pack that has variants of them.

use super::executor::Decision;
use crate::features::{RELAXED_SIMD, SIMD};
use crate::{HostConfig, OpKey};
use ruvllm_manifest::{KernelEntry, Manifest, Violation};

/// A kernel of a pack before its module is looked at: what would run it, what speaks against it there, and the
/// features that decide between it and variants of it.
pub(super) struct Variant<'a, 'b> {
    pub(super) entry: &'a KernelEntry,
    pub(super) key: OpKey,
    pub(super) module: Option<&'a [u8]>,
    pub(super) decision: Decision,
    pub(super) violations: &'b [Violation],
    pub(super) features: Vec<String>,
    /// What of memory it lacks here, if it does.
    pub(super) lack: Option<String>,
}

impl Variant<'_, '_> {
    /// Whether it could run here.
    fn suits(&self) -> bool {
        self.violations.is_empty() && self.lack.is_none()
    }

    fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|other| other == feature)
    }

    /// Whether it is there for executors without vectors.
    fn is_scalar(&self) -> bool {
        self.entry.platforms.wamr.is_some() && !self.has(SIMD)
    }

    /// Of kernels of one operation, those of the highest rank are taken: on the executor that is preferred, then
    /// with relaxed SIMD, then others with SIMD, then those without. Relaxed SIMD on a deterministic host comes
    /// last of all.
    fn rank(&self, config: &HostConfig) -> (bool, usize, u32) {
        let is_relaxed = self.has(RELAXED_SIMD);
        let behind = config.executors().iter().rev();
        let place = behind.take_while(|kind| **kind != self.decision.executor).count();
        let vectors = match (is_relaxed, self.is_scalar()) {
            (true, _) => 2,
            (false, false) => 1,
            (false, true) => 0,
        };
        (!(is_relaxed && config.deterministic), place, vectors)
    }
}

/// Why a kernel stands back behind a variant of it in its pack, if it does. One that the pack names as a fallback
/// stays.
pub(super) fn is_superseded(
    kernel: &Variant<'_, '_>,
    kernels: &[Variant<'_, '_>],
    manifest: &Manifest,
    config: &HostConfig,
) -> Option<String> {
    let rank = kernel.rank(config);
    let rivals = kernels.iter().filter(|other| other.key == kernel.key);
    let best = rivals
        .filter(|other| other.suits() && other.rank(config) > rank)
        .max_by_key(|other| other.rank(config))?;
    if !rank.0 {
        let why = "it uses relaxed SIMD, whose results depend on the processor; the pack has a variant without";
        return Some(why.to_owned());
    }
    if manifest.fallbacks.values().any(|fallback| *fallback == kernel.entry.id) {
        return None;
    }
    let Decision { executor, reason } = &kernel.decision;
    if best.rank(config).1 > rank.1 {
        let other = best.decision.executor;
        return Some(format!(
            "it {reason}; the pack has a variant for {other}, which is preferred here"
        ));
    }
    let mut why = match kernel.is_scalar() {
        true => "the pack has a faster variant with SIMD; this one is for executors without",
        false => {
            "the pack has a faster variant with relaxed SIMD; this one is for deterministic mode"
        }
    }
    .to_owned();
    // Such as that it needs another version of the executor that is preferred.
    if config.executors().first() != Some(executor) {
        why += &format!("; it {reason}");
    }
    Some(why)
}
