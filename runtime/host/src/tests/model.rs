//! Generations under random interleavings of everything that can be done to them, beside a plain
//! model.

use super::*;
use crate::GenerationState;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Packs of two names, two versions each. Each traps on a number of its own in the input.
const PACKS: usize = 4;
const STAGED: usize = 3;
const KEPT: usize = 2;

fn packs() -> &'static [TestPack] {
    static PACKS_BUILT: OnceLock<Vec<TestPack>> = OnceLock::new();
    PACKS_BUILT.get_or_init(|| {
        let build = |n: usize| {
            let prologue = format!(
                "(if (f32.eq (f32.load (i32.load offset=0 (local.get $desc))) (f32.const {}))
                   (then unreachable))",
                poison(n)
            );
            let module = Module { prologue, ..Module::default() };
            PackBuilder::new()
                .kernel("rmsnorm_f32", rmsnorm_f32(&module))
                .manifest(|m| {
                    m.name = name(n).parse().unwrap();
                    m.version = semver::Version::new(1 + n as u64 / 2, 0, 0);
                })
                .build()
        };
        (0..PACKS).map(build).collect()
    })
}

fn name(pack: usize) -> &'static str {
    ["even", "odd"][pack % 2]
}

fn poison(pack: usize) -> f32 {
    12_340.0 + pack as f32
}

#[derive(Clone, Debug)]
enum Action {
    Stage(usize),
    Discard(usize),
    Activate(usize),
    Try(usize),
    Promote,
    EndTrial,
    RollBack(u64),
    Remove(usize),
    Bar(usize),
    Clear(usize),
    Pin,
    Drop(usize),
    /// On the pin of that number; with the poison of a pack, or without.
    Call(usize, Option<usize>),
}

fn action() -> impl Strategy<Value = Action> {
    let (pack, any) = (0..PACKS, 0..8usize);
    prop_oneof![
        4 => pack.clone().prop_map(Action::Stage),
        1 => any.clone().prop_map(Action::Discard),
        4 => any.clone().prop_map(Action::Activate),
        2 => any.clone().prop_map(Action::Try),
        2 => Just(Action::Promote),
        1 => Just(Action::EndTrial),
        3 => (0..12u64).prop_map(Action::RollBack),
        1 => pack.clone().prop_map(Action::Remove),
        1 => pack.clone().prop_map(Action::Bar),
        1 => pack.clone().prop_map(Action::Clear),
        4 => Just(Action::Pin),
        3 => any.clone().prop_map(Action::Drop),
        6 => (any, prop::option::of(pack)).prop_map(|(pin, poison)| Action::Call(pin, poison)),
    ]
}

/// A pack that was staged once.
#[derive(Debug)]
struct Copy {
    pack: usize,
    calls: u64,
    quarantined: bool,
    published: bool,
}

#[derive(Clone, Debug)]
struct Generation {
    number: u64,
    copies: Vec<usize>,
    activated: bool,
    origin: u64,
}

/// What should be so, in the plainest terms.
struct Model {
    copies: Vec<Copy>,
    staged: Vec<(u64, usize)>,
    last_staged: u64,
    last: u64,
    kept: Vec<Generation>,
    active: u64,
    canary: Option<u64>,
    barred: BTreeSet<usize>,
    pins: Vec<u64>,
    native_calls: u64,
}

type Outcome = Result<(), &'static str>;

impl Model {
    fn new() -> Self {
        let first = Generation { number: 1, copies: Vec::new(), activated: true, origin: 1 };
        Self {
            copies: Vec::new(),
            staged: Vec::new(),
            last_staged: 0,
            last: 1,
            kept: vec![first],
            active: 1,
            canary: None,
            barred: BTreeSet::new(),
            pins: Vec::new(),
            native_calls: 0,
        }
    }

    fn generation(&self, number: u64) -> Option<&Generation> {
        self.kept.iter().find(|generation| generation.number == number)
    }

    fn next(&mut self, copies: Vec<usize>, activated: bool, origin: Option<u64>) {
        self.last += 1;
        copies.iter().for_each(|&copy| self.copies[copy].published = true);
        let (number, origin) = (self.last, origin.unwrap_or(self.last));
        self.kept.push(Generation { number, copies, activated, origin });
        if activated {
            (self.active, self.canary) = (number, None);
        } else {
            self.canary = Some(number);
        }
    }

    fn stage(&mut self, pack: usize) -> Outcome {
        if self.barred.contains(&pack) {
            return Err("pack_barred");
        }
        if self.staged.iter().any(|&(_, copy)| self.copies[copy].pack == pack) {
            return Ok(());
        }
        if self.staged.len() == STAGED {
            return Err("stage_full");
        }
        self.last_staged += 1;
        self.staged.push((self.last_staged, self.copies.len()));
        self.copies.push(Copy { pack, calls: 0, quarantined: false, published: false });
        Ok(())
    }

    fn publish(&mut self, id: u64, activated: bool) -> Outcome {
        let at = self.staged.iter().position(|staged| staged.0 == id).ok_or("not_staged")?;
        let copy = self.staged[at].1;
        let pack = self.copies[copy].pack;
        if self.barred.contains(&pack) {
            return Err("pack_barred");
        }
        if self.canary.is_some() {
            return Err("canary_running");
        }
        self.staged.remove(at);
        let mut copies = self.generation(self.active).unwrap().copies.clone();
        copies.retain(|&other| name(self.copies[other].pack) != name(pack));
        copies.insert(0, copy);
        self.next(copies, activated, None);
        Ok(())
    }

    fn promote(&mut self) -> Outcome {
        let canary = self.canary.take().ok_or("no_canary")?;
        self.active = canary;
        self.kept.iter_mut().find(|g| g.number == canary).unwrap().activated = true;
        Ok(())
    }

    fn roll_back(&mut self, to: u64) -> Outcome {
        let target = self.generation(to).filter(|g| g.activated && g.number != self.active);
        let Generation { copies, origin, .. } = target.ok_or("generation_not_kept")?.clone();
        if copies.iter().any(|&copy| self.barred.contains(&self.copies[copy].pack)) {
            return Err("pack_barred");
        }
        self.next(copies, true, Some(origin));
        Ok(())
    }

    fn remove(&mut self, pack: usize) -> bool {
        let mut copies = self.generation(self.active).unwrap().copies.clone();
        let before = copies.len();
        copies.retain(|&copy| name(self.copies[copy].pack) != name(pack));
        let found = copies.len() < before;
        if found {
            self.next(copies, true, None);
        }
        found
    }

    fn call(&mut self, generation: u64, poisoned: Option<usize>) {
        for copy in self.generation(generation).unwrap().copies.clone() {
            let copy = &mut self.copies[copy];
            if copy.quarantined {
                continue;
            }
            if poisoned == Some(copy.pack) {
                copy.quarantined = true;
                continue;
            }
            copy.calls += 1;
            return;
        }
        self.native_calls += 1;
    }

    fn serves(&self, number: u64) -> bool {
        number == self.active || Some(number) == self.canary
    }

    fn forget(&mut self) {
        let activated = self.kept.iter().filter(|generation| generation.activated);
        let numbers: Vec<u64> = activated.map(|generation| generation.number).collect();
        let old = &numbers[..numbers.len().saturating_sub(KEPT + 1)];
        let (pins, active, canary) = (&self.pins, self.active, self.canary);
        self.kept.retain(|generation| {
            let Generation { number, activated, .. } = *generation;
            let held = pins.contains(&number) || number == active || Some(number) == canary;
            held || activated && !old.contains(&number)
        });
    }
}

/// The host, its model, and pins of both.
struct Pair {
    host: Host,
    worker: Worker,
    pins: Vec<Arc<RegistrySnapshot>>,
    model: Model,
}

impl Pair {
    fn act(&mut self, action: &Action) {
        let Self { host, model, .. } = self;
        let id = |of: &Model, n: usize| of.staged.get(n).map_or(999, |staged| staged.0);
        let code = |result: Result<(), crate::HostError>| result.map_err(|error| error.code());
        match *action {
            Action::Stage(n) => {
                let got = host.stage(packs()[n].verify().unwrap());
                assert_eq!(code(got.map(drop)), model.stage(n));
            }
            Action::Discard(n) => {
                let id = id(model, n);
                let before = model.staged.len();
                model.staged.retain(|staged| staged.0 != id);
                assert_eq!(host.discard(id), model.staged.len() < before);
            }
            Action::Activate(n) => {
                let id = id(model, n);
                assert_eq!(code(host.activate(id).map(drop)), model.publish(id, true));
            }
            Action::Try(n) => {
                let id = id(model, n);
                assert_eq!(code(host.start_canary(id, 0.5).map(drop)), model.publish(id, false));
            }
            Action::Promote => {
                assert_eq!(code(host.promote_canary().map(drop)), model.promote());
            }
            Action::EndTrial => {
                let ended = model.canary.take().map(drop).ok_or("no_canary");
                assert_eq!(code(host.end_canary().map(drop)), ended);
            }
            Action::RollBack(to) => {
                assert_eq!(code(host.roll_back(to).map(drop)), model.roll_back(to));
            }
            Action::Remove(n) => assert_eq!(host.remove(name(n)), model.remove(n)),
            Action::Bar(n) => {
                host.bar(&digest(n), "the test says so");
                model.barred.insert(n);
            }
            Action::Clear(n) => assert_eq!(host.clear(&digest(n)), model.barred.remove(&n)),
            Action::Pin => {
                let pin = host.pin();
                assert!(model.serves(pin.generation()));
                model.pins.push(pin.generation());
                self.pins.push(pin);
            }
            Action::Drop(n) if n < self.pins.len() => {
                self.pins.remove(n);
                model.pins.remove(n);
            }
            Action::Call(n, poisoned) if n < self.pins.len() => {
                let (mut x, weight) = input(1, 16);
                x[0] = poisoned.map_or(x[0], poison);
                let (x, weight) = (Operand::f32(&x), Operand::f32(&weight));
                rmsnorm_with(&mut self.worker, &self.pins[n], 1, 16, x, weight).unwrap();
                model.call(model.pins[n], poisoned);
            }
            Action::Drop(_) | Action::Call(..) => {}
        }
        self.model.forget();
    }

    /// Holds everything that can be seen of the host against the model.
    fn check(&self) {
        let Self { host, model, .. } = self;
        let versions = |copies: &[usize]| -> Vec<String> {
            copies.iter().map(|&copy| digest(model.copies[copy].pack)).collect()
        };
        let want = model.kept.iter().rev().map(|generation| {
            let Generation { number, copies, origin, .. } = generation;
            let holders = model.pins.iter().filter(|&pin| pin == number).count();
            let state = match () {
                () if *number == model.active => GenerationState::Active,
                () if Some(*number) == model.canary => GenerationState::Canary { share: 0.5 },
                () if holders > 0 => GenerationState::Draining,
                () => GenerationState::Drained,
            };
            (*number, state, holders, (origin != number).then_some(*origin), versions(copies))
        });
        let want: Vec<_> = want.collect();
        let got = host.generations().into_iter().map(|report| {
            let packs = report.packs.into_iter().map(|pack| pack.digest).collect();
            (report.generation, report.state, report.holders, report.restores, packs)
        });
        assert_eq!(got.collect::<Vec<_>>(), want);
        let staged: Vec<u64> = host.staged().iter().map(|staged| staged.id).collect();
        assert_eq!(staged, model.staged.iter().map(|staged| staged.0).collect::<Vec<_>>());
        // Figures are listed in the order of publication, which is not that of staging.
        let stats = host.stats();
        let figures = stats.iter().filter(|stats| stats.kernel == "rmsnorm_f32");
        let mut got: Vec<_> = figures
            .map(|s| (s.pack.clone(), s.pack_version.clone(), s.calls, s.quarantined))
            .collect();
        let published = model.copies.iter().filter(|copy| copy.published);
        let mut want: Vec<_> = published
            .map(|copy| {
                let manifest = &packs()[copy.pack].manifest;
                let version = manifest.version.to_string();
                (manifest.name.to_string(), version, copy.calls, copy.quarantined)
            })
            .collect();
        got.sort();
        want.sort();
        assert_eq!(got, want);
        assert_eq!(super::stats(host, "native:rmsnorm_f32").calls, model.native_calls);
        for (pin, number) in self.pins.iter().zip(&model.pins) {
            assert_eq!(pin.generation(), *number);
            let copies = &model.generation(*number).unwrap().copies;
            let answers = copies.iter().find(|&&copy| !model.copies[copy].quarantined);
            let explanation = pin.explain(&OpKey::rmsnorm_f32());
            let selected =
                explanation.candidates.iter().find(|c| c.verdict == crate::Verdict::Selected);
            let want = answers.map_or("native", |&copy| name(model.copies[copy].pack));
            assert_eq!(selected.unwrap().pack, want);
        }
    }
}

fn digest(pack: usize) -> String {
    packs()[pack].verify().unwrap().digest().to_string()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn generations_do_what_a_plain_model_says(actions in prop::collection::vec(action(), 1..60)) {
        static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
        let cache = CACHE.get_or_init(|| tempfile::tempdir().unwrap());
        let config = HostConfig {
            cache_dir: Some(cache.path().join("cache")),
            staged: STAGED,
            kept_generations: KEPT,
            quarantine_after: 1,
            ..HostConfig::default()
        };
        let host = Host::new(config).unwrap();
        let worker = host.worker().unwrap();
        let mut pair = Pair { host, worker, pins: Vec::new(), model: Model::new() };
        for action in &actions {
            pair.act(action);
            pair.check();
        }
    }
}
