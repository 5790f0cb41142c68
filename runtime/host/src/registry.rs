//! Generations of the registry.
//!
//! A [`RegistrySnapshot`] never changes. Installing a pack builds the next one and publishes it by
//! compare-and-swap; whoever holds an older one goes on with it undisturbed, and its kernels go
//! when the last holder lets go. There is no lock between a publisher and a reader.

use crate::gate::Skipped;
use crate::kernel::Kernel;
use crate::plan::CallPlan;
use crate::race::{Race, Records};
use crate::select::{Choice, Explanation, Field, choose, explain};
use crate::{CallError, OpKey, Policy};
use std::collections::HashMap;
use std::sync::Arc;

/// A published pack.
pub(crate) struct PackRecord {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) kernels: Vec<Arc<Kernel>>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) fallbacks: HashMap<String, String>,
}

/// All kernels of one generation, and for every operation who answers it. Immutable.
pub struct RegistrySnapshot {
    pub(crate) host: u64,
    generation: u64,
    policy: Policy,
    /// Where the policy is `fastest`.
    records: Option<Arc<Records>>,
    /// Newest first.
    packs: Vec<Arc<PackRecord>>,
    natives: Arc<[Arc<Kernel>]>,
    slots: Vec<Slot>,
    index: HashMap<OpKey, u32>,
}

/// An operation of a snapshot.
pub(crate) struct Slot {
    pub(crate) key: OpKey,
    pub(crate) plan: CallPlan,
    pub(crate) choice: Choice,
    /// Where the policy is `fastest` and there is more than one candidate.
    pub(crate) race: Option<Race>,
}

/// Where an operation lies in the snapshot that gave it out. Valid for that snapshot only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSlot {
    index: u32,
    generation: u64,
}

impl RegistrySnapshot {
    /// The first generation: native twins only.
    pub(crate) fn first(
        host: u64,
        policy: Policy,
        records: Option<Arc<Records>>,
        natives: Arc<[Arc<Kernel>]>,
    ) -> Self {
        let empty = Self {
            host,
            generation: 0,
            policy,
            records,
            packs: Vec::new(),
            natives,
            slots: Vec::new(),
            index: HashMap::new(),
        };
        empty.with_packs(Vec::new())
    }

    /// The next generation, with a pack in place of any of its name.
    pub(crate) fn with(&self, pack: Arc<PackRecord>) -> Self {
        let others = self.packs.iter().filter(|other| other.name != pack.name).cloned();
        self.with_packs([pack.clone()].into_iter().chain(others).collect())
    }

    /// The next generation, without the pack of that name.
    pub(crate) fn without(&self, name: &str) -> Self {
        self.with_packs(self.packs.iter().filter(|pack| pack.name != name).cloned().collect())
    }

    fn with_packs(&self, packs: Vec<Arc<PackRecord>>) -> Self {
        let mut keys: Vec<&OpKey> = Vec::new();
        let mut add = |key| {
            if !keys.contains(&key) {
                keys.push(key);
            }
        };
        self.natives.iter().for_each(|kernel| add(&kernel.key));
        for pack in &packs {
            pack.kernels.iter().for_each(|kernel| add(&kernel.key));
            pack.skipped.iter().for_each(|skipped| add(&skipped.key));
        }
        let slots: Vec<Slot> = keys
            .into_iter()
            .map(|key| {
                let choice = choose(&self.policy, &field(key, &packs, &self.natives));
                let plan = match choice.chain.first() {
                    Some(kernel) => kernel.plan.clone(),
                    None => CallPlan::none(),
                };
                let race = (self.records.as_ref())
                    .filter(|_| choice.chain.len() > 1)
                    .map(|records| records.race(key, &choice.chain));
                Slot { key: key.clone(), plan, choice, race }
            })
            .collect();
        let index =
            slots.iter().enumerate().map(|(i, slot)| (slot.key.clone(), i as u32)).collect();
        Self {
            host: self.host,
            generation: self.generation + 1,
            policy: self.policy.clone(),
            records: self.records.clone(),
            natives: self.natives.clone(),
            packs,
            slots,
            index,
        }
    }

    /// Its number; a later snapshot of the same host has a higher one.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Where the operation lies, or `None` where nobody can answer it.
    pub fn slot(&self, key: &OpKey) -> Option<OpSlot> {
        let index = *self.index.get(key)?;
        let answered = !self.slots[index as usize].choice.chain.is_empty();
        answered.then_some(OpSlot { index, generation: self.generation })
    }

    /// Every operation that the snapshot knows, answered or not.
    pub fn ops(&self) -> impl Iterator<Item = &OpKey> {
        self.slots.iter().map(|slot| &slot.key)
    }

    /// Names and versions of the packs, newest first.
    pub fn packs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.packs.iter().map(|pack| (pack.name.as_str(), pack.version.as_str()))
    }

    /// Why the operation is answered by the kernel that answers it.
    pub fn explain(&self, key: &OpKey) -> Explanation {
        let slot = self.index.get(key).map(|&index| &self.slots[index as usize]);
        let races = match (slot, &self.records) {
            (Some(slot), Some(records)) => records.explain(key, &slot.choice.chain),
            _ => Vec::new(),
        };
        explain(key, &self.policy, self.generation, slot.map(|slot| &slot.choice), &races)
    }

    /// A hash of who answers these operations: the modules, in the order in which they are asked. It
    /// is the same for snapshots in which nothing about them differs, whatever else does.
    pub fn fingerprint(&self, keys: &[OpKey]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm op fingerprint v1");
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        };
        for key in keys {
            add(&key.to_string());
            let slot = self.index.get(key).map(|&index| &self.slots[index as usize]);
            for kernel in slot.iter().flat_map(|slot| &slot.choice.chain) {
                add(&kernel.hash);
            }
            add("");
        }
        *hasher.finalize().as_bytes()
    }

    /// Results of races, where the policy is `fastest`.
    pub(crate) fn records(&self) -> Option<&Records> {
        self.records.as_deref()
    }

    #[inline]
    pub(crate) fn entry(&self, slot: OpSlot) -> Result<&Slot, CallError> {
        match self.slots.get(slot.index as usize) {
            Some(entry) if slot.generation == self.generation => Ok(entry),
            _ => Err(CallError::StaleSlot { slot: slot.generation, snapshot: self.generation }),
        }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Every kernel, packs newest first, native twins last.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &Arc<Kernel>> {
        self.packs.iter().flat_map(|pack| &pack.kernels).chain(self.natives.iter())
    }
}

/// Who competes for an operation.
fn field<'a>(
    key: &'a OpKey,
    packs: &'a [Arc<PackRecord>],
    natives: &'a [Arc<Kernel>],
) -> Field<'a> {
    let kernels = packs.iter().flat_map(|pack| &pack.kernels).chain(natives);
    let skipped = packs
        .iter()
        .flat_map(|pack| pack.skipped.iter().map(|skipped| (pack.name.as_str(), skipped)));
    let fallbacks = packs.iter().flat_map(|pack| {
        pack.fallbacks.iter().map(|(id, next)| ((pack.name.as_str(), id.as_str()), next.as_str()))
    });
    Field {
        key,
        kernels: kernels.filter(|kernel| kernel.key == *key).collect(),
        skipped: skipped.filter(|(_, skipped)| skipped.key == *key).collect(),
        fallbacks: fallbacks.collect(),
    }
}
