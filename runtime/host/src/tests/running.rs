//! What goes wrong while kernels run, and who answers then.

use super::*;
use crate::{Failure, Output, Policy, Resident, Trap, TrapKind};

/// Runs a kernel that is bad for 100 columns, and gives how it failed. The answer is right all the
/// same, because the native twin gave it.
fn failure(module: &Module) -> Failure {
    failure_in(&pack(module))
}

fn failure_in(pack: &TestPack) -> Failure {
    let host = host(config(), pack);
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &snap, 2, 64).unwrap();
    rmsnorm(&mut worker, &snap, 2, 100).unwrap();
    rmsnorm(&mut worker, &snap, 2, 64).unwrap();
    let (mine, twin) = (stats(&host, "rmsnorm_f32"), stats(&host, "native:rmsnorm_f32"));
    assert_eq!((mine.calls, mine.fallbacks, twin.calls), (2, 1, 1));
    let (mut incidents, dropped) = host.take_incidents();
    assert_eq!((incidents.len(), dropped), (1, 0));
    assert_eq!(incidents[0].kernel, "rmsnorm_f32");
    incidents.remove(0).failure
}

/// How a kernel traps that does this for 100 columns.
fn trap(module: &Module) -> Trap {
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(module)).manifest(|m| {
        m.kernels[0].resource_limits.max_table_elements = 2;
        let wasmtime = m.kernels[0].platforms.wasmtime.as_mut().unwrap();
        wasmtime.features = vec!["bulk-memory".to_owned()];
    });
    failure_in(&pack.build()).trap().unwrap().clone()
}

#[test]
fn traps_are_told_by_kind_and_answered_by_the_twin() {
    let divided =
        |op: &str, a: &str, b: &str| format!("(drop (i32.{op} (i32.const {a}) (i32.const {b})))");
    let called = |ty: &str, at: u32| format!("(call_indirect {ty} (i32.const {at}))");
    for (instructions, kind) in [
        ("(unreachable)".to_owned(), TrapKind::Unreachable),
        (divided("div_u", "1", "0"), TrapKind::DivisionByZero),
        (divided("div_s", "0x80000000", "-1"), TrapKind::IntegerOverflow),
        ("(drop (i32.trunc_f32_s (f32.const nan)))".to_owned(), TrapKind::BadConversion),
        ("(drop (i32.trunc_f32_s (f32.const 1e30)))".to_owned(), TrapKind::IntegerOverflow),
        (called("(param)", 1), TrapKind::IndirectCallNull),
        (called("(param)", 2), TrapKind::IndirectCallOutOfBounds),
        (format!("(drop {})", called("(result i32)", 0)), TrapKind::IndirectCallSignature),
        ("(f32.store (i32.const 0xfffffff0) (f32.const 1))".to_owned(), TrapKind::OutOfBounds),
        ("(drop (i64.load16_u (i32.const 0x7fffffff)))".to_owned(), TrapKind::OutOfBounds),
        (
            "(memory.fill (i32.const -1) (i32.const 0) (i32.const 9))".to_owned(),
            TrapKind::OutOfBounds,
        ),
    ] {
        let fields = "(func $other) (table 2 2 funcref) (elem (i32.const 0) $other)";
        let module = Module { fields: fields.to_owned(), ..but_for(100, &instructions) };
        let trap = trap(&module);
        assert_eq!(trap.kind, kind, "{instructions}");
        // WAMR keeps no address of an access.
        let has_access = kind == TrapKind::OutOfBounds && !wamr::is_taken();
        assert_eq!(trap.access.is_some(), has_access, "{instructions}");
        let place = trap.place.unwrap();
        let function = if wamr::is_taken() { "" } else { "rmsnorm_forward" };
        assert_eq!((&*place.function, &*place.called), (function, "rmsnorm_forward"));
    }
}

#[test]
fn a_trap_tells_the_access_and_the_instruction_of_the_packs_own_module() {
    for (instructions, opcode, offset, size, write) in [
        ("(f32.store (i32.const 0xfffffff0) (f32.const 1))", 0x38, 0xffff_fff0, Some(4), true),
        ("(drop (i64.load16_u (i32.const 0x7fffffff)))", 0x33, 0x7fff_ffff, Some(2), false),
        ("(memory.fill (i32.const -1) (i32.const 0) (i32.const 9))", 0xfc, 0xffff_ffff, None, true),
        // The one copies what cannot be read, the other to where nothing can be written.
        (
            "(memory.copy (i32.const 0x100) (i32.const -16) (i32.const 9))",
            0xfc,
            0xffff_fff0,
            None,
            false,
        ),
        (
            "(memory.copy (i32.const -16) (i32.const 0x100) (i32.const 9))",
            0xfc,
            // From the end on, since the target is behind the source.
            0xffff_fff8,
            None,
            true,
        ),
        // Beyond the window, where constants go.
        ("(i32.store8 (i32.const 0x2ff00) (i32.const 1))", 0x3a, 0x2ff00, Some(1), true),
        // As above, at a distance from its address that the guard pages do not cover.
        (
            "(i32.store8 offset=0x20000 (i32.const 0xff00) (i32.const 1))",
            0x3a,
            0x2ff00,
            Some(1),
            true,
        ),
    ] {
        let module = but_for(100, instructions);
        let trap = trap(&module);
        assert_eq!(trap.kind, TrapKind::OutOfBounds, "{instructions}");
        let access = trap.access.unwrap();
        assert_eq!((access.offset, access.size, access.write), (Some(offset), size, write));
        assert!(access.memory.is_multiple_of(64 << 10) && access.memory > 0);
        let place = trap.place.unwrap();
        assert_eq!(rmsnorm_f32(&module)[place.frames[0] as usize], opcode, "{instructions}");
        assert_eq!(place.function, "rmsnorm_forward");
    }
}

#[test]
fn what_a_kernel_says_of_its_failure_is_told_and_explained() {
    let say = "(local.set $i (i32.add (i32.load offset=24 (local.get $desc))
            (i32.sub (i32.load offset=28 (local.get $desc)) (i32.const 256))))
        (i64.store (local.get $i) (i64.const 0x01000047534d5652))
        (i32.store offset=8 (local.get $i) (i32.const 4))
        (i32.store offset=12 (local.get $i) (i32.const 0x3f776f68))";
    for (then, told) in [
        (
            "(return (i32.const 42))",
            "returned status 42, which the ABI does not define; it says: how?",
        ),
        ("(unreachable)", "; it says: how?"),
    ] {
        let host = host(config(), &pack(&but_for(100, &format!("{say} {then}"))));
        rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 2, 100).unwrap();
        let incident = host.take_incidents().0.remove(0).to_string();
        assert!(incident.ends_with(told), "{incident}");
        let explanation = host.explain(&OpKey::rmsnorm_f32()).to_string();
        assert!(explanation.contains(told), "{explanation}");
    }
}

#[test]
fn every_status_but_ok_is_answered_by_the_twin() {
    for status in [1, 2, 3, 4, 5, 6, 7, -1] {
        let module = but_for(100, &format!("(return (i32.const {status}))"));
        assert!(matches!(failure(&module), Failure::Status { status: told, .. } if told == status));
    }
}

#[test]
fn recursion_without_end_is_answered_by_the_twin() {
    let module = Module {
        fields: "(func $f (param i32) (result i32)
            (i32.add (call $f (local.get 0)) (i32.const 1)))"
            .into(),
        ..but_for(100, "(drop (call $f (i32.const 0)))")
    };
    let failure = failure(&module);
    assert_eq!(failure.trap().unwrap().kind, TrapKind::StackOverflow, "{failure}");
    let place = if wamr::is_taken() { "in a call of rmsnorm_forward" } else { "in f at 0x" };
    assert!(failure.to_string().contains(place), "{failure}");
}

#[test]
fn a_loop_without_end_is_answered_by_the_twin_in_time() {
    let module = rmsnorm_f32(&but_for(100, "(loop $l (br $l))"));
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", module)
        .manifest(|m| m.kernels[0].resource_limits.max_epoch_ticks = 20)
        .build();
    let started = std::time::Instant::now();
    let failure = failure_in(&pack);
    assert_eq!(failure.trap().unwrap().kind, TrapKind::Deadline, "{failure}");
    assert_eq!(failure.code(), "kernel_deadline");
    assert!(started.elapsed().as_secs() < 20);
}

/// The result of `rmsnorm` on [`input`] as a reader puts it together, and where its runs began.
fn read(
    worker: &mut Worker,
    snap: &RegistrySnapshot,
    rows: u32,
    dim: u32,
) -> (Vec<u8>, Vec<usize>) {
    let (x, weight) = input(rows, dim);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), rows, dim, 1e-5);
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let len = (rows * dim * 4) as usize;
    let (mut got, mut starts) = (vec![0; len], Vec::new());
    let mut read = |at: usize, run: &[u8]| {
        assert!(
            run.as_ptr().addr().is_multiple_of(4) && run.len().is_multiple_of(dim as usize * 4)
        );
        got[at..at + run.len()].copy_from_slice(run);
        starts.push(at);
    };
    worker.call(snap, slot, &call, Output::Read { len, read: &mut read }).unwrap();
    (got, starts)
}

/// The same, written to bytes by the native twin.
fn by_the_twin(rows: u32, dim: u32) -> Vec<u8> {
    let config = HostConfig { policy: Policy::NativeOnly, ..config() };
    let host = host(config, &pack(&Module::default()));
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let (x, weight) = input(rows, dim);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), rows, dim, 1e-5);
    let mut out = vec![0; (rows * dim * 4) as usize];
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    worker.call(&snap, slot, &call, &mut out).unwrap();
    out
}

#[test]
fn a_reader_gets_every_row_once_and_large_results_in_runs() {
    for policy in [Policy::SandboxFirst, Policy::NativeOnly] {
        let config = HostConfig { policy, cross_check_every: 1, ..config() };
        let host = host(config, &pack(&Module::default()));
        let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
        for (rows, runs) in [(1, 1), (3, 1), (600, 3)] {
            let (got, starts) = read(&mut worker, &snap, rows, 64);
            let (x, weight) = input(rows, 64);
            let (x, weight) = (Operand::f32(&x), Operand::f32(&weight));
            assert_rmsnorm(&OpCall::rmsnorm(x, weight, rows, 64, 1e-5), &got);
            assert!(starts.len() == runs && starts.is_sorted(), "{starts:?}");
        }
    }
}

#[test]
fn what_is_wrong_or_did_not_come_to_an_end_reaches_no_reader() {
    let config = HostConfig { cross_check_every: 1, ..config() };
    let wrong = spoiled_for(100, "(f32.store (local.get $out) (f32.const 7))");
    for module in [wrong, but_for(100, "(unreachable)")] {
        let host = host(config.clone(), &pack(&module));
        let (got, starts) = read(&mut host.worker().unwrap(), &host.snapshot(), 2, 100);
        assert_eq!((got, starts), (by_the_twin(2, 100), vec![0]));
    }
}

#[test]
fn a_reader_gets_all_of_the_next_candidates_result_after_a_part_of_the_first_ones() {
    // Only a call's last run of rows is short. Admission has rows of 64 columns as well, but five of them.
    let seven = "(if (i32.eq (i32.load (i32.load offset=32 (local.get $desc))) (i32.const 7))
        (then (unreachable)))";
    let host = host(config(), &pack(&but_for(64, seven)));
    let (got, starts) = read(&mut host.worker().unwrap(), &host.snapshot(), 262, 64);
    assert_eq!(got, by_the_twin(262, 64));
    assert_eq!(starts, [0, 0, 256 * 64 * 4]);
}

#[test]
fn a_kernel_that_is_wrong_later_is_caught_by_a_cross_check() {
    let wrong = spoiled_for(100, "(f32.store (local.get $out) (f32.const 7))");
    let every = |cross_check_every| HostConfig { cross_check_every, ..config() };
    let host = host(every(4), &pack(&wrong));
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    let (x, weight) = input(1, 100);
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, 100, 1e-5);
    let mut first = || {
        let mut out = vec![0; 400];
        worker.call(&snap, slot, &call, &mut out).unwrap();
        f32::from_le_bytes([out[0], out[1], out[2], out[3]])
    };
    // The first call of an instance is checked: the answer is the twin's.
    assert_ne!(first(), 7.0);
    let (incidents, _) = host.take_incidents();
    assert!(matches!(incidents[0].failure, Failure::Mismatch { .. }), "{}", incidents[0]);
    // Each new instance is checked again, until the kernel is out of service.
    assert_ne!(first(), 7.0);
    assert_ne!(first(), 7.0);
    assert!(stats(&host, "rmsnorm_f32").quarantined);
}

#[test]
fn a_wrong_call_is_checked_with_the_probability_that_is_stated() {
    let wrong = spoiled_for(100, "(f32.store (local.get $out) (f32.const nan))");
    let (every, tries) = (4, 400);
    let mut config = HostConfig { cross_check_every: every, ..config() };
    config.quarantine_after = u32::MAX;
    let host = host(config, &pack(&wrong));
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let (x, weight) = input(1, 100);
    // The checked runs of as many instances, each of which has had its first run.
    let caught = (0..tries).map(|_| {
        let mut worker = host.worker().unwrap();
        // As many bytes, so that one instance has both.
        rmsnorm(&mut worker, &snap, 1, 96).unwrap();
        let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, 100, 1e-5);
        let mut out = vec![0; 400];
        let fallbacks = |host: &Host| stats(host, "rmsnorm_f32").failures.values().sum::<u64>();
        let before = fallbacks(&host);
        let at = (1..=8).find(|_| {
            worker.call(&snap, slot, &call, &mut out).unwrap();
            fallbacks(&host) > before
        });
        at.unwrap_or(9)
    });
    let caught: Vec<u32> = caught.collect();
    let by = |n: u32| caught.iter().filter(|&&at| at <= n).count() as f64 / f64::from(tries);
    for n in [1, 2, 4, 8] {
        let stated = 1.0 - (1.0 - 1.0 / f64::from(every)).powi(n as i32);
        // Five standard deviations.
        let near = 5.0 * (stated * (1.0 - stated) / f64::from(tries)).sqrt();
        assert!((by(n) - stated).abs() < near, "{} of {n} calls instead of {stated}", by(n));
    }
}

#[test]
fn a_kernel_is_not_blamed_for_numbers_that_no_kernel_can_compute_with() {
    // One client's rows are beyond what squares of binary32 can hold: another kernel has made them.
    let config = HostConfig { cross_check_every: 1, ..config() };
    let host = host(config, &pack(&Module::default()));
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    let weight = [1.0; 64];
    for nonsense in [f32::MAX, -f32::MAX, f32::INFINITY, f32::NAN] {
        let x = [nonsense; 64];
        let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, 64, 1e-5);
        worker.call(&snap, slot, &call, &mut [0; 256]).unwrap();
    }
    let stats = stats(&host, "rmsnorm_f32");
    assert_eq!((stats.calls, stats.fallbacks, stats.quarantined), (4, 0, false));
}

#[test]
fn once_numbers_make_no_sense_whoever_makes_them_is_found() {
    // Right in its first run, which is checked, and from then on far too large.
    let wrong = Module {
        fields: "(global $calls (mut i32) (i32.const 0))".to_owned(),
        ..spoiled_for(100, "(f32.store (local.get $out) (f32.const 3e38))")
    };
    let config = HostConfig { cross_check_every: u32::MAX, ..config() };
    let host = host(config, &pack(&wrong));
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &snap, 1, 96).unwrap();
    let (x, weight) = input(1, 100);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, 100, 1e-5);
    let mut out = vec![0; 400];
    for _ in 0..10 {
        worker.call(&snap, slot, &call, &mut out).unwrap();
    }
    assert_eq!(stats(&host, "rmsnorm_f32").fallbacks, 0, "checks are rare");
    // The engine says this of a step whose logits are not finite.
    worker.suspect();
    for _ in 0..3 {
        worker.call(&snap, slot, &call, &mut out).unwrap();
    }
    assert!(stats(&host, "rmsnorm_f32").quarantined);
}

#[test]
fn a_kernel_that_writes_its_inputs_later_is_caught_by_a_cross_check() {
    let module =
        spoiled_for(100, "(f32.store (i32.load offset=0 (local.get $desc)) (f32.const 7))");
    let config = HostConfig { cross_check_every: 1, ..config() };
    let host = host(config, &pack(&module));
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &host.snapshot(), 1, 100).unwrap();
    assert_eq!(host.take_incidents().0[0].failure, Failure::InputWritten);
}

#[test]
fn a_kernel_is_quarantined_after_so_many_failures_and_the_explanation_says_so() {
    let config = HostConfig { quarantine_after: 2, ..config() };
    let host = host(config, &pack(&but_for(100, "(unreachable)")));
    let snap = host.snapshot();
    let (mut one, mut two) = (host.worker().unwrap(), host.worker().unwrap());
    rmsnorm(&mut one, &snap, 1, 100).unwrap();
    assert!(!stats(&host, "rmsnorm_f32").quarantined);
    rmsnorm(&mut two, &snap, 1, 100).unwrap();
    assert!(stats(&host, "rmsnorm_f32").quarantined);
    rmsnorm(&mut one, &snap, 1, 64).unwrap();
    assert_eq!(stats(&host, "rmsnorm_f32").calls, 0);
    let explanation = host.explain(&OpKey::rmsnorm_f32());
    assert_eq!(explanation.selected.as_deref(), Some("native:rmsnorm_f32"));
    assert!(explanation.to_string().contains("quarantined after 2 failures"), "{explanation}");
    assert!(host.take_incidents().0[1].quarantined);
}

#[test]
fn strict_mode_gives_the_error_instead_of_falling_back() {
    let config = HostConfig { strict: true, ..config() };
    let host = host(config, &pack(&but_for(100, "(unreachable)")));
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    for _ in 0..3 {
        let error = rmsnorm(&mut worker, &snap, 1, 100).unwrap_err();
        assert_eq!(error.code(), "kernel_trap");
    }
    // Quarantined by now, and still nobody else may answer.
    assert_eq!(rmsnorm(&mut worker, &snap, 1, 64).unwrap_err().code(), "no_kernel_left");
}

#[test]
fn constants_are_uploaded_once_per_instance() {
    let host = host(config(), &pack(&Module::default()));
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    let (x, weight) = input(3, 48);
    let constants: Vec<Resident> = (0..5).map(|_| Resident::from_f32(&weight)).collect();
    for _ in 0..4 {
        for weight in &constants {
            let x = Operand::f32(&x);
            rmsnorm_with(&mut worker, &snap, 3, 48, x, weight.all()).unwrap();
        }
    }
    assert_eq!(worker.uploaded(), 5);
    // A part of one, aligned or not, is used in place or copied, and right in either case.
    let long = Resident::from_f32(&[&weight[..16], &weight, &weight].concat());
    for from in [64, 64 + 48 * 4, 8] {
        let part = Operand::Resident(&long, from..from + 48 * 4);
        rmsnorm_with(&mut worker, &snap, 3, 48, Operand::f32(&x), part).unwrap();
    }
}

#[test]
fn constants_beyond_the_memory_are_copied_and_dead_ones_make_room() {
    let module = Module { memory: "(memory (export \"memory\") 1 2)".into(), ..Module::default() };
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| m.kernels[0].resource_limits.max_memory_pages = 2)
        .build();
    let host = host(HostConfig { strict: true, ..config() }, &pack);
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    // 16 KiB each: beside a call's operands four fit what two pages leave, not more. The fifth is copied,
    // which takes room from the others.
    let (x, weight) = input(1, 4096);
    let mut call = |weight: &Resident| {
        rmsnorm_with(&mut worker, &snap, 1, 4096, Operand::f32(&x), weight.all()).unwrap();
        worker.uploaded()
    };
    let mut constants: Vec<Resident> = (0..5).map(|_| Resident::from_f32(&weight)).collect();
    let uploaded: Vec<usize> = constants.iter().map(&mut call).collect();
    assert_eq!(uploaded, [1, 2, 3, 4, 1]);
    let uploaded: Vec<usize> = constants.iter().map(&mut call).collect();
    assert_eq!(uploaded, [2, 3, 3, 3, 3]);
    constants.remove(0);
    assert_eq!(call(&constants[2]), 1);
    assert_eq!(call(&constants[0]), 2);
}

#[test]
fn large_calls_are_cut_into_rows_and_right() {
    let module = Module { memory: "(memory (export \"memory\") 1 2)".into(), ..Module::default() };
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| m.kernels[0].resource_limits.max_memory_pages = 2)
        .build();
    let host = host(HostConfig { strict: true, ..config() }, &pack);
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &snap, 300, 1000).unwrap();
    // A row that does not fit is nobody's fault: counted, not held against the kernel.
    let error = rmsnorm(&mut worker, &snap, 2, 20_000).unwrap_err();
    assert_eq!(error.code(), "call_too_large");
    assert_eq!(stats(&host, "rmsnorm_f32").failures["call_too_large"], 1);
    assert!(!stats(&host, "rmsnorm_f32").quarantined);
}

#[test]
fn a_wrong_call_is_the_callers_error_and_never_the_kernels() {
    let host = host(config(), &pack(&Module::default()));
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    let (x, weight) = input(2, 8);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 2, 9, 1e-5);
    let error = worker.call(&snap, slot, &call, &mut [0; 64]).unwrap_err();
    assert_eq!(error.code(), "call_shape");
    assert!(host.take_incidents().0.is_empty());
    let empty = OpCall::rmsnorm(Operand::None, Operand::f32(&weight), 0, 8, 1e-5);
    worker.call(&snap, slot, &empty, &mut []).unwrap();
    assert_eq!(stats(&host, "rmsnorm_f32").calls, 0);
}

#[test]
fn policies_decide_who_answers() {
    let module = &pack(&Module::default());
    let selected = |policy: Policy| {
        let host = host(HostConfig { policy, ..config() }, module);
        let mut worker = host.worker().unwrap();
        rmsnorm(&mut worker, &host.snapshot(), 1, 64).unwrap();
        let explanation = host.explain(&OpKey::rmsnorm_f32());
        let selected = explanation.selected.clone().unwrap();
        assert_eq!(stats(&host, &selected).calls, 1);
        serde_json::to_string(&explanation).unwrap();
        (selected, explanation)
    };
    assert_eq!(selected(Policy::SandboxFirst).0, "rmsnorm_f32");
    let (native, explanation) = selected(Policy::NativeOnly);
    assert_eq!(native, "native:rmsnorm_f32");
    assert_eq!(explanation.candidates[1].verdict, crate::Verdict::Rejected);
    let pin = |to: &str| Policy::Pinned([("rmsnorm".to_owned(), to.to_owned())].into());
    assert_eq!(selected(pin("native:rmsnorm_f32")).0, "native:rmsnorm_f32");
    assert_eq!(selected(pin("test-kernels/rmsnorm_f32")).0, "rmsnorm_f32");
    let (kept, explanation) = selected(pin("nobody"));
    assert_eq!(kept, "rmsnorm_f32");
    assert!(explanation.notes[0].contains("nobody"));
}

#[test]
fn a_kernel_that_is_fast_in_every_64th_call_is_reported_as_it_is() {
    // Slow but for the calls that would be timed if those came every so many.
    let count = "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (if (i32.ne (i32.and (global.get $calls) (i32.const 63)) (i32.const 2))
          (then (local.set $i (i32.const 100000))
            (loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))))";
    let module =
        Module { fields: "(global $calls (mut i32) (i32.const 0))".into(), ..but_for(100, count) };
    let host = host(config(), &pack(&module));
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let started = std::time::Instant::now();
    for _ in 0..6400 {
        rmsnorm(&mut worker, &snap, 1, 100).unwrap();
    }
    let took = started.elapsed().as_nanos() as u64;
    let reported = stats(&host, "rmsnorm_f32").nanos;
    assert!(reported > took / 4 && reported < took * 4, "{reported} of {took}");
}

#[test]
fn an_explanation_counts_failures_by_what_they_are() {
    let module = Module {
        prologue: but_for(100, "(return (i32.const 6))").prologue
            + &but_for(200, "unreachable").prologue,
        ..Module::default()
    };
    let host = host(HostConfig { quarantine_after: 5, ..config() }, &pack(&module));
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let mut told_after = |dim| {
        rmsnorm(&mut worker, &snap, 1, dim).unwrap();
        host.explain(&OpKey::rmsnorm_f32()).to_string()
    };
    let told = told_after(100);
    assert!(told.contains("failed once so far\n"), "{told}");
    assert!(told.contains("failures without a trap: 1 kernel_status\n"), "{told}");
    assert!(!told.contains("traps: "), "{told}");
    told_after(100);
    let told = told_after(200);
    for told_of in [
        "failed 3 times so far\n",
        "traps: 1 unreachable\n",
        "failures without a trap: 2 kernel_status\n",
    ] {
        assert!(told.contains(told_of), "{told}");
    }
}
