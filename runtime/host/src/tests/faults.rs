//! Thousands of faults, spread over operations, kinds and time.

use super::*;
use ruvllm_native::{Isa, twin};
use ruvllm_tests::wat::assemble;
use std::collections::BTreeMap;

/// Numbers that make a kernel fail in a way of their own. Halves hold them.
const TRAP: f32 = 1001.0;
const LOOP: f32 = 1003.0;
const WRONG: f32 = 1005.0;
const STATUS: f32 = 1007.0;

/// What it does when the first number of its input is one of those, `$first`. The wrong number is
/// written in the end.
const FAULTS: &str = "(if (f32.eq (local.get $first) (f32.const 1001)) (then unreachable))
    (if (f32.eq (local.get $first) (f32.const 1003)) (then (loop $l (br $l))))
    (if (f32.eq (local.get $first) (f32.const 1007)) (then (return (i32.const 6))))";

fn faulty_rmsnorm() -> Vec<u8> {
    let first = "(f32.load (i32.load offset=0 (local.get $desc)))";
    let prologue = FAULTS.replace("(local.get $first)", first);
    let epilogue = format!(
        "(if (f32.eq {first} (f32.const {WRONG})) (then (f32.store (local.get $out) (f32.const 7))))"
    );
    rmsnorm_f32(&Module { prologue, epilogue, ..Module::default() })
}

/// `kv_unpack(q8_0) -> f32`; its faults are told by the first number of its output.
fn faulty_kv_unpack() -> Vec<u8> {
    assemble(&format!(
        r#"(module
  (memory (export "memory") 1 256)
  (global (export "__heap_base") i32 (i32.const 1024))
  (func (export "kv_unpack_forward") (param $desc i32) (result i32)
    (local $x i32) (local $out i32) (local $end i32) (local $i i32) (local $d f32)
    (local $first f32)
    (local.set $x (i32.load offset=0 (local.get $desc)))
    (local.set $out (i32.load offset=16 (local.get $desc)))
    (local.set $end (i32.add (local.get $out) (i32.load offset=20 (local.get $desc))))
    (block $done (loop $block
      (br_if $done (i32.ge_u (local.get $out) (local.get $end)))
      ;; A half as a float: its bits in place, and 2^112 for the difference of the exponents.
      (local.set $d (f32.copysign
        (f32.mul (f32.const 0x1p112) (f32.reinterpret_i32 (i32.shl
          (i32.and (i32.load16_u (local.get $x)) (i32.const 0x7fff)) (i32.const 13))))
        (f32.reinterpret_i32 (i32.shl (i32.load16_u (local.get $x)) (i32.const 16)))))
      ;; Of what is not finite nothing is made a number.
      (if (i32.eq (i32.const 0x7c00) (i32.and (i32.load16_u (local.get $x)) (i32.const 0x7c00)))
        (then (local.set $d (f32.const nan))))
      (local.set $i (i32.const 0))
      (loop $quant
        (f32.store (local.get $out) (f32.mul (local.get $d)
          (f32.convert_i32_s (i32.load8_s offset=2 (i32.add (local.get $x) (local.get $i))))))
        (local.set $out (i32.add (local.get $out) (i32.const 4)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $quant (i32.lt_u (local.get $i) (i32.const 32))))
      (local.set $x (i32.add (local.get $x) (i32.const 34)))
      (br $block)))
    (local.set $out (i32.load offset=16 (local.get $desc)))
    (local.set $first (f32.load (local.get $out)))
    {FAULTS}
    (if (f32.eq (local.get $first) (f32.const {WRONG}))
      (then (f32.store (local.get $out) (f32.const 7))))
    (i32.const 0)))"#
    ))
}

fn faulty_pack() -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", faulty_rmsnorm())
        .kernel("kv_unpack_q8", faulty_kv_unpack())
        .manifest(|m| m.kernels.iter_mut().for_each(|k| k.resource_limits.max_epoch_ticks = 20))
        .build()
}

/// Calls an operation with a number in front, and holds the answer against the reference.
fn call(worker: &mut Worker, snap: &RegistrySnapshot, op: usize, first: Option<f32>) {
    if op == 0 {
        let (mut x, weight) = input(1, 64);
        x[0] = first.unwrap_or(x[0]);
        let (x, weight) = (Operand::f32(&x), Operand::f32(&weight));
        return rmsnorm_with(worker, snap, 1, 64, x, weight).unwrap();
    }
    // A block whose first number this is: halves hold it, so the quant is 1.
    let mut block = half::f16::from_f32(first.unwrap_or(3.0)).to_le_bytes().to_vec();
    block.push(1);
    block.extend((1..32).map(|i| i as u8));
    let key = OpKey::kv_unpack(DType::Q8_0);
    let slot = snap.slot(&key).unwrap();
    let (mut got, mut want) = ([0; 128], [0; 128]);
    worker.call(snap, slot, &OpCall::kv_unpack(Operand::Bytes(&block), 1, 32), &mut got).unwrap();
    let (words, types) = ([1, 32], [DType::Q8_0]);
    twin::run(Isa::Scalar, Op::KvUnpack, &types, DType::F32, &block, &[], &words, &mut want)
        .unwrap();
    assert_eq!(got, want);
}

/// The failures of both kernels, by code.
fn failures(host: &Host) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for kernel in ["rmsnorm_f32", "kv_unpack_q8"] {
        for (code, n) in stats(host, kernel).failures {
            *all.entry(code).or_default() += n;
        }
    }
    all
}

#[test]
fn ten_thousand_faults_fail_no_call_and_change_no_number() {
    let config = HostConfig { quarantine_after: u32::MAX, cross_check_every: 1, ..config() };
    let host = host(config, &faulty_pack());
    let work = |thread: usize| {
        let mut worker = host.worker().unwrap();
        for n in 0..5000 {
            let op = (n / 7 + thread) % 2;
            match n % 50 {
                // Deadlines take their time, so there are fewer of them.
                0 if n % 100 == 0 => call(&mut worker, &host.pin(), op, Some(LOOP)),
                // An instance goes with its worker.
                0 => worker = host.worker().unwrap(),
                1..=20 => call(&mut worker, &host.pin(), op, Some(TRAP)),
                21..=40 => call(&mut worker, &host.pin(), op, Some(WRONG)),
                _ => call(&mut worker, &host.pin(), op, Some(STATUS)),
            }
            call(&mut worker, &host.pin(), 1 - op, None);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    let failures = failures(&host);
    let injected = [("kernel_trap", 4000), ("kernel_mismatch", 4000), ("kernel_status", 1800)];
    for (code, n) in injected {
        assert_eq!(failures[code], n, "{code}");
    }
    // On a busy machine others may miss theirs too.
    assert!(failures["kernel_deadline"] >= 100, "{failures:?}");
}

#[test]
fn a_kernel_is_out_of_service_after_as_many_faults_as_are_allowed_and_no_more_happen() {
    let config = HostConfig { quarantine_after: 3, ..config() };
    let host = host(config, &faulty_pack());
    let mut worker = host.worker().unwrap();
    for n in 0..10_000 {
        call(&mut worker, &host.pin(), n % 2, Some(TRAP));
    }
    assert_eq!(failures(&host), [("kernel_trap", 6)].into());
    let (quarantined, incidents) = (
        host.kernels().iter().filter(|kernel| kernel.quarantined).count(),
        host.take_incidents().0.len(),
    );
    assert_eq!((quarantined, incidents), (2, 6));
    assert_eq!(stats(&host, "native:rmsnorm_f32").calls, 5000);
}
