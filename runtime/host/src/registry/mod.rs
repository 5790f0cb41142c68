//! Generations of the registry.
//!
//! A [`RegistrySnapshot`] never changes. Activating a pack builds the next one and publishes it by one
//! store of a pointer; whoever holds an older one goes on with it undisturbed, and its kernels go
//! when the last holder lets go. There is no lock between a publisher and a reader.

pub(crate) mod figures;
pub(crate) mod kernel;
pub(crate) mod learn;
pub(crate) mod race;
pub(crate) mod select;
mod slot;

use crate::code::PreparedKernel;
use crate::gate::Skipped;
use crate::op::plan::CallPlan;
use crate::pack::PackId;
use crate::stats::KernelStats;
use crate::{CallError, HostError, OpKey, Policy};
use kernel::{PublishedKernel, Uids};
use learn::Learner;
use race::Records;
use ruvllm_manifest::nearest;
use select::{Contenders, Evidence, Explanation, choose};
use slot::explain;
pub(crate) use slot::{Slot, with_first};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A pack whose kernels can be published: they were admitted here.
pub(crate) struct PreparedPack {
    id: PackId,
    kernels: Vec<PreparedKernel>,
    skipped: Vec<Skipped>,
    fallbacks: HashMap<String, String>,
    /// As it is published, while a snapshot holds it.
    published: Mutex<Weak<PublishedPack>>,
}

/// A pack of a published generation. Only [`PreparedPack::publish`] makes one.
pub(crate) struct PublishedPack {
    prepared: Arc<PreparedPack>,
    kernels: Vec<Arc<PublishedKernel>>,
}

impl PreparedPack {
    /// A pack of these kernels; `fallbacks` are its own wishes, by id.
    pub(crate) fn new(
        id: PackId,
        kernels: Vec<PreparedKernel>,
        skipped: Vec<Skipped>,
        fallbacks: HashMap<String, String>,
    ) -> Self {
        Self { id, kernels, skipped, fallbacks, published: Mutex::new(Weak::new()) }
    }

    pub(crate) fn id(&self) -> &PackId {
        &self.id
    }

    pub(crate) fn kernels(&self) -> &[PreparedKernel] {
        &self.kernels
    }

    /// The pack as published: the same kernels as long as any snapshot has them, so that workers
    /// keep their instances, new ones of the same code after that.
    pub(crate) fn publish(self: &Arc<Self>, uids: &Arc<Uids>) -> Arc<PublishedPack> {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.upgrade().unwrap_or_else(|| {
            let kernel = |code: &PreparedKernel| Arc::new(PublishedKernel::new(code.clone(), uids));
            let kernels = self.kernels.iter().map(kernel).collect();
            let record = Arc::new(PublishedPack { prepared: self.clone(), kernels });
            *published = Arc::downgrade(&record);
            record
        })
    }
}

impl PublishedPack {
    pub(crate) fn prepared(&self) -> &Arc<PreparedPack> {
        &self.prepared
    }

    fn name(&self) -> &str {
        &self.prepared.id.name
    }
}

/// All kernels of one generation, and for every operation who answers it. Immutable.
pub struct RegistrySnapshot {
    pub(crate) host: u64,
    generation: u64,
    policy: Policy,
    /// Every how many runs of an instance its output is checked; 0 is never. A trial generation is
    /// checked more often until it is made the active one.
    check_every: AtomicU32,
    /// Where the policy is `fastest`, and answers need not be the same bits again.
    fastest: Option<Arc<Fastest>>,
    /// Newest first.
    packs: Vec<Arc<PublishedPack>>,
    natives: Arc<[Arc<PublishedKernel>]>,
    /// What packs have no part in, all generations share.
    slots: Vec<Arc<Slot>>,
    index: HashMap<OpKey, u32>,
}

/// How the fastest candidates are found.
pub(crate) struct Fastest {
    /// Those of team operations.
    pub(crate) races: Records,
    /// Those of all others.
    pub(crate) learner: Arc<Learner>,
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
        fastest: Option<Arc<Fastest>>,
        natives: Arc<[Arc<PublishedKernel>]>,
        check_every: u32,
    ) -> Self {
        let empty = Self {
            host,
            generation: 0,
            policy,
            check_every: AtomicU32::new(check_every),
            fastest,
            packs: Vec::new(),
            natives,
            slots: Vec::new(),
            index: HashMap::new(),
        };
        empty.next(1, Vec::new(), check_every)
    }

    /// A later generation, of these packs, newest first.
    pub(crate) fn next(
        &self,
        generation: u64,
        packs: Vec<Arc<PublishedPack>>,
        check_every: u32,
    ) -> Self {
        let mut keys: Vec<&OpKey> = Vec::new();
        let mut add = |key| {
            if !keys.contains(&key) {
                keys.push(key);
            }
        };
        self.natives.iter().for_each(|kernel| add(kernel.key()));
        for pack in &packs {
            pack.kernels.iter().for_each(|kernel| add(kernel.key()));
            pack.prepared.skipped.iter().for_each(|skipped| add(&skipped.key));
        }
        let of_packs = |key: &OpKey| {
            packs.iter().any(|pack| {
                pack.kernels.iter().any(|kernel| kernel.key() == key)
                    || pack.prepared.skipped.iter().any(|skipped| skipped.key == *key)
            })
        };
        let slots: Vec<Arc<Slot>> = keys
            .into_iter()
            .map(|key| {
                let same = |at: &u32| self.slots[*at as usize].clone();
                let earlier = self.index.get(key).filter(|_| !of_packs(key)).map(same);
                if let Some(earlier) = earlier.filter(|slot| slot.choice.is_native()) {
                    return earlier;
                }
                let choice = choose(&self.policy, &field(key, &packs, &self.natives));
                let plan = match choice.chain.first() {
                    Some(kernel) => kernel.plan().clone(),
                    None => CallPlan::none(),
                };
                let (chain, fastest) = (&choice.chain, self.fastest.as_ref());
                let fastest = fastest.filter(|_| chain.len() > 1);
                let team = choice.is_team();
                let race = fastest.filter(|_| team).map(|f| f.races.race(key, chain));
                let preference = fastest.filter(|_| !team);
                let preference = preference.map(|f| f.learner.preference(key, chain));
                let fingerprint = fingerprint(key, chain);
                Arc::new(Slot { key: key.clone(), plan, choice, race, preference, fingerprint })
            })
            .collect();
        let index =
            slots.iter().enumerate().map(|(i, slot)| (slot.key.clone(), i as u32)).collect();
        Self {
            host: self.host,
            generation,
            policy: self.policy.clone(),
            check_every: AtomicU32::new(check_every),
            fastest: self.fastest.clone(),
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
        self.packs
            .iter()
            .map(|pack| (pack.prepared.id.name.as_str(), pack.prepared.id.version.as_str()))
    }

    /// Why the operation is answered by the kernel that answers it.
    pub fn explain(&self, key: &OpKey) -> Explanation {
        let slot = self.slot_of(key);
        let measured = match (slot, &self.fastest) {
            (Some(Slot { choice, .. }), Some(fastest)) => Some(match choice.is_team() {
                true => Evidence::Raced(fastest.races.explain(key, &choice.chain)),
                false => Evidence::Learnt(fastest.learner.explain(key, &choice.chain)),
            }),
            _ => None,
        };
        explain(key, &self.policy, self.generation, slot, measured.as_ref())
    }

    /// Checks that every kernel that the policy pins is there, and can answer the operation.
    ///
    /// # Errors
    /// [`HostError::UnknownPin`], with the nearest name that is there.
    pub fn check_pins(&self) -> Result<(), HostError> {
        self.unknown_pins().next().map_or(Ok(()), Err)
    }

    /// Checks that every operation is there for which the policy pins a kernel: the kernels may come with packs
    /// that are published later.
    ///
    /// # Errors
    /// [`HostError::UnknownPin`], with the nearest name that is there.
    pub fn check_pinned_operations(&self) -> Result<(), HostError> {
        let check = |op: &str, _: &str| self.pinned_slots(op).map(|_| ());
        self.wrong_pins(check).next().map_or(Ok(()), Err)
    }

    /// The pins of the policy that have no effect on this snapshot, each as the [`HostError::UnknownPin`] that
    /// says what is missing and the nearest name that is there.
    pub fn unknown_pins(&self) -> impl Iterator<Item = HostError> {
        self.wrong_pins(|op, kernel| self.check_pin(op, kernel))
    }

    /// The pins of which `check` says what is wrong.
    fn wrong_pins(
        &self,
        check: impl Fn(&str, &str) -> Result<(), String>,
    ) -> impl Iterator<Item = HostError> {
        let pins = match &self.policy {
            Policy::Pinned(pins) => Some(pins),
            _ => None,
        };
        pins.into_iter().flatten().filter_map(move |(op, kernel)| {
            let reason = check(op, kernel).err()?;
            Some(HostError::UnknownPin { pin: format!("{op}={kernel}"), reason })
        })
    }

    /// The operations that a pin names, of which there is at least one.
    fn pinned_slots(&self, op: &str) -> Result<Vec<&Slot>, String> {
        let is_meant = |slot: &&Slot| slot.key.op == op || slot.key.to_string() == op;
        let slots: Vec<&Slot> = self.slots.iter().map(|slot| &**slot).filter(is_meant).collect();
        if slots.is_empty() {
            let keys: Vec<String> = self.ops().map(OpKey::to_string).collect();
            let names =
                self.ops().map(|key| key.op.as_str()).chain(keys.iter().map(String::as_str));
            let nearest = nearest(op, names).unwrap_or_default();
            return Err(format!("there is no operation {op:?}; the nearest name is {nearest:?}"));
        }
        Ok(slots)
    }

    fn check_pin(&self, op: &str, kernel: &str) -> Result<(), String> {
        let slots = self.pinned_slots(op)?;
        let chains = || slots.iter().flat_map(|slot| &slot.choice.chain);
        if chains().any(|candidate| candidate.is_named(kernel)) {
            return Ok(());
        }
        let left_out = slots.iter().flat_map(|slot| &slot.choice.left_out);
        if let Some(candidate) = left_out.into_iter().find(|candidate| candidate.kernel == kernel) {
            return Err(format!("{kernel:?} cannot run here: {}", candidate.reasons.join("; ")));
        }
        let nearest = nearest(kernel, chains().map(|candidate| candidate.id())).unwrap_or_default();
        Err(format!("no kernel {kernel:?} answers {op:?}; the nearest name is {nearest:?}"))
    }

    /// A hash of who answers these operations: the modules, in the order in which they are asked. It
    /// is the same for snapshots in which nothing about them differs, whatever else does.
    ///
    /// # Errors
    /// [`CallError::StaleSlot`].
    pub fn fingerprint(
        &self,
        slots: impl IntoIterator<Item = OpSlot>,
    ) -> Result<[u8; 32], CallError> {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm ops fingerprint v2");
        for slot in slots {
            hasher.update(&self.entry(slot)?.fingerprint);
        }
        Ok(*hasher.finalize().as_bytes())
    }

    /// Results of races, where the policy is `fastest`.
    pub(crate) fn races(&self) -> Option<&Records> {
        self.fastest.as_ref().map(|fastest| &fastest.races)
    }

    #[inline]
    pub(crate) fn entry(&self, slot: OpSlot) -> Result<&Slot, CallError> {
        match self.slots.get(slot.index as usize) {
            Some(entry) if slot.generation == self.generation => Ok(entry),
            _ => Err(CallError::StaleSlot { slot: slot.generation, snapshot: self.generation }),
        }
    }

    /// The operation of this key, answered or not.
    pub(crate) fn slot_of(&self, key: &OpKey) -> Option<&Slot> {
        self.index.get(key).map(|&index| &*self.slots[index as usize])
    }

    pub(crate) fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }

    /// Which packs it has, newest first.
    pub fn pack_ids(&self) -> Vec<PackId> {
        self.packs.iter().map(|pack| pack.prepared.id.clone()).collect()
    }

    /// The packs, newest first.
    pub(crate) fn pack_records(&self) -> &[Arc<PublishedPack>] {
        &self.packs
    }

    /// Every how many runs of an instance its output is checked.
    #[inline]
    pub(crate) fn check_every(&self) -> u32 {
        self.check_every.load(Relaxed)
    }

    pub(crate) fn set_check_every(&self, every: u32) {
        self.check_every.store(every, Relaxed);
    }

    /// Every kernel, packs newest first, native twins last.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &Arc<PublishedKernel>> {
        self.packs.iter().flat_map(|pack| &pack.kernels).chain(self.natives.iter())
    }

    /// Whether calls of any of its kernels are counted there.
    pub(crate) fn counts_in(&self, stats: &Arc<KernelStats>) -> bool {
        self.kernels().any(|kernel| Arc::ptr_eq(kernel.stats(), stats))
    }
}

/// A hash of an operation and the modules that answer it, in the order in which they are asked.
fn fingerprint(key: &OpKey, chain: &[Arc<PublishedKernel>]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm op fingerprint v2");
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    };
    add(&key.to_string());
    chain.iter().for_each(|kernel| add(kernel.hash()));
    *hasher.finalize().as_bytes()
}

/// Who competes for an operation.
fn field<'a>(
    key: &'a OpKey,
    packs: &'a [Arc<PublishedPack>],
    natives: &'a [Arc<PublishedKernel>],
) -> Contenders<'a> {
    let kernels = packs.iter().flat_map(|pack| &pack.kernels).chain(natives);
    let skipped = packs
        .iter()
        .flat_map(|pack| pack.prepared.skipped.iter().map(|skipped| (pack.name(), skipped)));
    let fallbacks = packs.iter().flat_map(|pack| {
        pack.prepared.fallbacks.iter().map(|(id, next)| ((pack.name(), id.as_str()), next.as_str()))
    });
    Contenders {
        key,
        kernels: kernels.filter(|kernel| kernel.key() == key).collect(),
        skipped: skipped.filter(|(_, skipped)| skipped.key == *key).collect(),
        fallbacks: fallbacks.collect(),
    }
}
