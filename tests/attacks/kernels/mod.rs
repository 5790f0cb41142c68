//! Attacks by a kernel in a pack that is authentic: signed by a trusted key, nothing flipped.
//!
//! An attack that shows at once is refused by the gate or by admission, and nothing of the pack is
//! published. One that waits until admission is over is answered by the native twin instead, with
//! the same bytes that a host without any pack gives.

mod another_abi;
mod avoids_the_checks;
mod backward_not_declared;
mod backward_status;
mod branch_table_bomb;
mod cache_of_another_user;
mod cache_open_to_others;
mod cleanup_status;
mod data_bomb;
mod data_out_of_bounds;
mod deep_nesting;
mod deep_recursion;
mod division_by_zero;
mod endless_backward;
mod endless_cleanup;
mod endless_loop;
mod endless_thread;
mod feature_not_declared;
mod gradient_left_unwritten;
mod grows_memory;
mod imports;
mod indirect_call_mismatch;
mod locals_bomb;
mod memory_over_the_limit;
mod memory_without_maximum;
mod missing_exports;
mod module_too_large;
mod nan_gradient;
mod nan_output;
mod out_of_bounds;
mod output_left_unwritten;
mod output_too_small;
mod poisoned_cache_entry;
mod race_between_threads;
mod relaxed_simd_drift;
mod remembers_at_the_end_of_memory;
mod remembers_at_the_end_of_scratch;
mod remembers_behind_its_constants;
mod remembers_behind_its_output;
mod remembers_behind_its_params;
mod remembers_behind_the_descriptor;
mod remembers_behind_the_last_region;
mod remembers_beyond_its_window;
mod remembers_by_atomics;
mod remembers_by_copying_memory;
mod remembers_by_dropping_data;
mod remembers_by_dropping_elements;
mod remembers_by_filling_memory;
mod remembers_in_a_global;
mod remembers_in_a_gradient;
mod remembers_in_a_reference;
mod remembers_in_a_stack_pointer;
mod remembers_in_a_table;
mod remembers_in_its_constants;
mod remembers_in_its_input;
mod remembers_in_its_output;
mod remembers_in_memory_it_did_not_need;
mod remembers_in_scratch;
mod remembers_in_static_memory;
mod remembers_in_the_descriptor;
mod remembers_in_wide_globals;
mod remembers_on_its_stack;
mod replayed_cache_entry;
mod right_only_when_admitted;
mod shared_memory_that_grows;
mod slow_admission;
mod slow_for_its_size;
mod start_section;
mod state_between_calls;
mod status_codes;
mod table_bomb;
mod takes_all_the_memory_it_may;
mod thousands_of_functions;
mod thread_that_gives_up;
mod thread_that_traps;
mod thread_that_waits;
mod threads_of_another_class;
mod tolerance_too_loose;
mod traps;
mod writes_its_inputs;
mod writes_outside_its_gradients;
mod writes_outside_its_output;
mod wrong_for_some_numbers;
mod wrong_gradient;
mod wrong_number;
mod wrong_number_later;

use ruvllm_host::{
    DeviceClass, ExecutorKind, Gradients, Host, HostConfig, Incident, OpCall, OpKey, Operand,
    Resident, Scope, WamrConfig,
};
use ruvllm_tests::wat::{Module, rmsnorm_backward, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack, wamr};
use std::path::{Path, PathBuf};

/// The configuration of a host, on the executor that this run of the tests is for.
fn config() -> HostConfig {
    if !wamr::is_taken() {
        return HostConfig::default();
    }
    HostConfig {
        executor: Some(ExecutorKind::Wamr),
        wamr: WamrConfig { library: wamr::library(), compiler: wamr::compiler() },
        // As much memory as on Wasmtime, so that calls are cut in the same places.
        instance_memory: None,
        ..DeviceClass::Embedded.config()
    }
}

#[test]
fn the_same_attacks_fail_on_wamr() {
    again_on_wamr(wamr::Mode::Interpreted);
}

#[test]
fn the_same_attacks_by_compiled_kernels_fail_on_wamr() {
    again_on_wamr(wamr::Mode::Compiled);
}

fn again_on_wamr(mode: wamr::Mode) {
    let build =
        wamr::Build { wamr: cfg!(feature = "wamr"), bundled: cfg!(feature = "wamr-bundled") };
    // These need vectors, which WAMR may have or not.
    let except = [
        "features_in_use_that_are_not_declared",
        "relaxed_simd_drift",
        "remembers_in_wide_globals",
        "the_same_attacks",
    ];
    wamr::run_again(build, mode, &["kernels::"], &except);
}

/// Columns that no golden input has: a kernel can tell by them that admission is over.
const LATER: u32 = 100;

fn pack(module: &Module) -> TestPack {
    PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(module)).build()
}

/// A pack whose kernel may take few ticks, for attacks on time.
fn hasty_pack(module: &Module) -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(module))
        .manifest(|m| m.kernels[0].resource_limits.max_epoch_ticks = 20)
        .build()
}

/// A pack whose kernel has four threads, and may take few ticks.
fn threaded_pack(module: &Module) -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(module))
        .threads(4)
        .manifest(|m| m.kernels[0].resource_limits.max_epoch_ticks = 50)
        .build()
}

/// A kernel whose thread of that index begins every call with these instructions.
fn thread_begins_with(index: u32, instructions: &str) -> Module {
    let is_it = format!("(i32.eq (local.get $index) (i32.const {index}))");
    Module { prologue: format!("(if {is_it} (then {instructions}))"), ..Module::threaded() }
}

/// The same, for calls of [`LATER`] columns alone.
fn thread_later_begins_with(index: u32, instructions: &str) -> Module {
    let later = later_begins_with(instructions).prologue;
    thread_begins_with(index, &later)
}

/// A host of the class that the pack is for, where each kernel is entered by as many threads as it asks for.
fn config_for(pack: &TestPack) -> HostConfig {
    match pack.manifest().kernels.iter().any(|kernel| kernel.threads > 1) {
        true => HostConfig { threads: Some(4), ..DeviceClass::Threads.config() },
        false => config(),
    }
}

/// A pack whose kernel is right, and so is its `kernel_backward`, but for these instructions at the beginning
/// and at the end of it.
fn differentiable(begin: &str, end: &str) -> TestPack {
    differentiable_with(&Module::default(), begin, end)
}

/// The same around a kernel with further fields.
fn differentiable_with(module: &Module, begin: &str, end: &str) -> TestPack {
    let fields = format!("{}\n{}", module.fields, rmsnorm_backward(begin, end));
    let module = Module { fields, ..module.clone() };
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| {
            m.kernels[0].backward = true;
            m.kernels[0].resource_limits.max_epoch_ticks = 100;
        })
        .build()
}

/// The same instructions, for calls of [`LATER`] columns alone.
fn later_backward(instructions: &str) -> String {
    format!(
        "(if (i32.eq (i32.load offset=4 (i32.load offset=32 (local.get $desc))) (i32.const {LATER}))
          (then {instructions}))"
    )
}

/// The gradients of three rows of [`LATER`] columns.
fn gradients(host: &Host) -> [Vec<f32>; 2] {
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    let x: Vec<f32> = (0..3 * LATER).map(|i| (i % 13) as f32 - 6.0).collect();
    let dy: Vec<f32> = (0..3 * LATER).map(|i| (i % 7) as f32 - 3.0).collect();
    let weight: Vec<f32> = (0..LATER).map(|i| (i % 5) as f32 / 2.0).collect();
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 3, LATER, 1e-5)
        .within(Scope::of(&[1; 32]));
    let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
    let to = Gradients { a: &mut dx, b: Some(&mut dweight) };
    worker.backward(&snap, slot, &call, &dy, to).unwrap();
    [dx, dweight]
}

/// The code of the one incident of a call for gradients, which the native twin must have answered.
fn outlived_backward(pack: &TestPack) -> &'static str {
    let config = HostConfig { cross_check_every: 1, ..config() };
    let host = Host::new(config.clone()).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    assert_eq!(gradients(&host), gradients(&Host::new(config).unwrap()));
    let (incidents, _) = host.take_incidents();
    assert_eq!(incidents.len(), 1);
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert_eq!((stats.backward_calls, stats.fallbacks), (0, 1));
    incidents[0].failure.code()
}

/// A kernel that begins every call with these instructions.
fn begins_with(instructions: &str) -> Module {
    Module { prologue: instructions.to_owned(), ..Module::default() }
}

/// A kernel that ends every call with these instructions.
fn ends_with(instructions: &str) -> Module {
    Module { epilogue: instructions.to_owned(), ..Module::default() }
}

/// A kernel that begins calls of [`LATER`] columns with these instructions.
fn later_begins_with(instructions: &str) -> Module {
    begins_with(&format!(
        "(if (i32.eq (i32.load offset=4 (i32.load offset=32 (local.get $desc))) (i32.const {LATER}))
          (then {instructions}))"
    ))
}

/// A kernel that ends calls of [`LATER`] columns with these instructions.
fn later_ends_with(instructions: &str) -> Module {
    ends_with(&format!("(if (i32.eq (local.get $dim) (i32.const {LATER})) (then {instructions}))"))
}

/// The cache of machine code in the directory of a test.
fn cache_of(directory: &Path) -> PathBuf {
    directory.join("cache")
}

/// The entries of that cache.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(cache_of(directory)).unwrap().map(|entry| entry.unwrap().path());
    listed.filter(|path| path.extension().is_some_and(|e| e == "aot")).collect()
}

/// Installs a pack in a new host with that cache: kernels that came from it, kernels that did not.
fn cached(directory: &Path, pack: &TestPack) -> (usize, usize) {
    let cache_dir = Some(cache_of(directory));
    let host = Host::new(HostConfig { cache_dir, ..config() }).unwrap();
    let report = host.install(pack.verify().unwrap()).unwrap();
    // Whatever was in the cache, what runs is the kernel of the pack.
    let fresh = Host::new(config()).unwrap();
    fresh.install(pack.verify().unwrap()).unwrap();
    assert!(rmsnorm(&host, 1) == rmsnorm(&fresh, 1));
    assert!(host.take_incidents().0.is_empty());
    (report.cache.hits, report.cache.misses)
}

/// Offers the pack to a host, which must refuse it and stay as it was. Gives the codes.
fn refused(pack: &TestPack) -> Vec<&'static str> {
    refused_by(config_for(pack), pack)
}

/// The same, of a host that is configured so.
fn refused_by(config: HostConfig, pack: &TestPack) -> Vec<&'static str> {
    let directory = tempfile::tempdir().unwrap();
    let cache_dir = Some(cache_of(directory.path()));
    let host = Host::new(HostConfig { cache_dir, ..config }).unwrap();
    let before: Vec<String> = host.kernels().into_iter().map(|kernel| kernel.id).collect();
    let error = host.install(pack.verify().unwrap()).unwrap_err();
    let after: Vec<String> = host.kernels().into_iter().map(|kernel| kernel.id).collect();
    assert_eq!((host.generation(), before), (1, after), "something was published");
    assert_eq!(error.code(), error.refusals()[0].code);
    assert!(entries(directory.path()).is_empty(), "something was cached");
    error.refusals().iter().map(|refusal| refusal.code).collect()
}

/// Calls a kernel that was admitted on [`LATER`] columns, `calls` times, with a cross-check every
/// time. Each answer must be that of a host without the pack. Gives what was reported.
fn outlived(pack: &TestPack, calls: usize) -> Vec<Incident> {
    let config = HostConfig { cross_check_every: 1, ..config_for(pack) };
    let host = Host::new(config.clone()).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    let want = rmsnorm(&Host::new(config).unwrap(), 1);
    assert_eq!(rmsnorm(&host, calls), want);
    let (incidents, dropped) = host.take_incidents();
    assert_eq!(dropped, 0);
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert_eq!((stats.calls, stats.fallbacks), (0, incidents.len() as u64));
    assert_eq!(stats.quarantined, incidents.len() >= 3);
    incidents
}

/// How many calls of one client the kernel answers, on a host with the usual configuration, until it is
/// out of service; `None` where that takes more than `most`.
fn wrong_calls_until_quarantine(pack: &TestPack, most: usize) -> Option<usize> {
    let host = Host::new(config()).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let x: Vec<f32> = (0..LATER).map(|i| (i % 13) as f32 - 6.0).collect();
    let weight = vec![0.75; x.len()];
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, LATER, 1e-5)
        .within(Scope::of(&[1; 32]));
    let mut y = vec![0; x.len() * 4];
    (1..=most).find(|_| {
        worker.call(&snap, slot, &call, &mut y).unwrap();
        let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
        stats.quarantined
    })
}

/// The last answer of so many calls.
fn rmsnorm(host: &Host, calls: usize) -> Vec<u8> {
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    let x: Vec<f32> = (0..3 * LATER).map(|i| (i % 13) as f32 - 6.0).collect();
    let weight: Vec<f32> = (0..LATER).map(|i| (i % 5) as f32 / 2.0).collect();
    // All of one scope, so that a kernel may count them.
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 3, LATER, 1e-5)
        .within(Scope::of(&[1; 32]));
    let mut y = vec![0; x.len() * 4];
    for _ in 0..calls {
        worker.call(&snap, slot, &call, &mut y).unwrap();
    }
    y
}

/// The code of the one incident of one call.
fn outlived_once(module: &Module) -> &'static str {
    let incidents = outlived(&pack(module), 1);
    assert_eq!(incidents.len(), 1);
    incidents[0].failure.code()
}

/// A kernel that is right but for two calls: what it sees in the one of a client it keeps, and in
/// that of another it gives it away.
#[derive(Default)]
struct Spy {
    /// Keeps the word `$i`.
    keep: String,
    /// Gives it again.
    recall: String,
    /// Further fields of the module.
    fields: String,
    /// What it does in every call.
    always: String,
    /// Whether it leaves its output as it was where it recalls.
    silent: bool,
    /// Bytes of static memory that it has beyond the usual.
    spare: u32,
}

/// What becomes of what a [`Spy`] kept.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Within a scope it is there, in another it is not.
    Forgotten,
    /// Not even within a scope: the host writes there for every call.
    Overwritten,
    /// It traps when it wants to keep something.
    Trapped,
}

impl Fate {
    /// What becomes of what a kernel keeps where it has no business: where pages cannot be protected, it
    /// can write there, and every scope has an instance of its own.
    fn of_a_fence() -> Self {
        if wamr::is_taken() { Fate::Forgotten } else { Fate::Trapped }
    }
}

impl Spy {
    /// The first number of the call whose second is to be kept.
    const KEEP: f32 = 777.0;
    /// The first number of the call that is to give it away.
    const RECALL: f32 = 888.0;
    /// What is to be kept.
    const SECRET: f32 = 4.0e3;

    /// Has one client's call, then another's, computed by the kernel, and holds the answer against that of
    /// a host where nobody called before. With threads it fares no better.
    fn fate(&self) -> Fate {
        let (fate, with_threads) = (self.fate_with(1), self.fate_with(4));
        // Threads are for Wasmtime, where pages are protected.
        let is_stricter = with_threads == Fate::Trapped && fate == Fate::of_a_fence();
        assert!(with_threads == fate || is_stricter, "{fate:?}, with threads {with_threads:?}");
        fate
    }

    fn fate_with(&self, threads: u32) -> Fate {
        let Spy { keep, recall, fields, always, silent, spare } = self;
        // The last thread has the row of a call that has but one.
        let (base, is_it) = match threads {
            1 => (Module::default(), "(i32.const 1)"),
            _ => {
                let last = "(i32.eq (local.get $index) (i32.sub (local.get $count) (i32.const 1)))";
                (Module::threaded(), last)
            }
        };
        let begins = |with: f32| {
            format!(
                "(i32.and {is_it}
                  (f32.eq (f32.load (i32.load offset=0 (local.get $desc))) (f32.const {with})))"
            )
        };
        let [keeps, recalls] = [Self::KEEP, Self::RECALL].map(begins);
        let module = Module {
            heap_base: 1024 + spare,
            fields: fields.clone(),
            prologue: if *silent {
                format!("(if {recalls} (then (return (i32.const 0))))")
            } else {
                String::new()
            },
            epilogue: format!(
                "{always}
                 (if {keeps} (then
                    (local.set $i (i32.load offset=4 (i32.load offset=0 (local.get $desc))))
                    {keep}))
                 (if {recalls} (then (i32.store offset=8 (local.get $out) {recall})))"
            ),
            ..base
        };
        let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).manifest(|m| {
            let features = &mut m.kernels[0].platforms.wasmtime.as_mut().unwrap().features;
            *features = ["simd", "bulk-memory"].map(str::to_owned).to_vec();
        });
        let pack = if threads > 1 { pack.threads(threads) } else { pack }.build();
        let (one, other) = (Scope::unique(), Scope::unique());
        let (told, incidents) = Self::told(&pack, &[(Self::KEEP, one), (Self::RECALL, other)]);
        let (untold, _) = Self::told(&pack, &[(Self::RECALL, other)]);
        assert_eq!(told, untold, "one client's number has reached another");
        let trapped = incidents.iter().any(|incident| incident.failure.code() == "kernel_trap");
        let (own, _) = Self::told(&pack, &[(Self::KEEP, one), (Self::RECALL, one)]);
        match (trapped, own == untold) {
            (true, true) => Fate::Trapped,
            // It does reach calls of its own client, so the attack is one.
            (false, false) => Fate::Forgotten,
            (false, true) => Fate::Overwritten,
            (true, false) => panic!("it traps, and remembers all the same"),
        }
    }

    /// The answer to the last of some calls on a new host, and what was reported. Nothing is cross-checked.
    fn told(pack: &TestPack, calls: &[(f32, Scope)]) -> (Vec<u8>, Vec<Incident>) {
        let host = Host::new(HostConfig { cross_check_every: 0, ..config_for(pack) }).unwrap();
        host.install(pack.verify().unwrap()).unwrap();
        let snap = host.snapshot();
        let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
        let mut worker = host.worker().unwrap();
        let weight = Resident::from_f32(&[1.5; LATER as usize]);
        let mut answer = vec![0; LATER as usize * 4];
        for &(first, scope) in calls {
            // A shorter row follows a longer one, in an instance that has room for both.
            let dim = if first == Self::KEEP { LATER } else { 40 };
            let mut x = vec![1.0; dim as usize];
            (x[0], x[1]) = (first, if first == Self::KEEP { Self::SECRET } else { 1.0 });
            let part = Operand::Resident(&weight, 0..x.len() * 4);
            let call = OpCall::rmsnorm(Operand::f32(&x), part, 1, dim, 1e-5).within(scope);
            answer.resize(x.len() * 4, 0);
            worker.call(&snap, slot, &call, &mut answer).unwrap();
        }
        (answer, host.take_incidents().0)
    }
}
