//! What device classes change, on kernels written for the purpose.

use super::*;
use crate::instance::taken;
use crate::op::plan::CallBytes;
use crate::{Tensor, TrapKind};
use ruvllm_tests::{custom_entry, wat};

fn embedded() -> HostConfig {
    let HostConfig { executor, wamr, .. } = config();
    HostConfig { executor, wamr, ..DeviceClass::Embedded.config() }
}

#[test]
fn a_small_device_runs_a_kernel_in_the_memory_that_its_class_gives() {
    // A module that may have 16 MiB: calls are cut to what 128 KiB hold.
    let host = host(embedded(), &pack(&Module::default()));
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    for (rows, dim) in [(1, 64), (600, 64), (3, 2048)] {
        rmsnorm(&mut worker, &snap, rows, dim).unwrap();
    }
    let mine = stats(&host, "rmsnorm_f32");
    let executor = if wamr::is_taken() { "wamr" } else { "wasmtime" };
    assert_eq!((mine.calls, mine.fallbacks, mine.executor), (3, 0, executor));
    // One row of this does not fit: its twin answers, and the kernel is not to blame.
    rmsnorm(&mut worker, &snap, 1, 40_000).unwrap();
    let mine = stats(&host, "rmsnorm_f32");
    assert_eq!((mine.calls, mine.failures.get("call_too_large")), (3, Some(&1)));
    assert!(!mine.quarantined);
    let told = host.explain(&OpKey::rmsnorm_f32()).to_string();
    assert!(told.contains("passed 1 call on for want of memory [call_too_large]"), "{told}");
    assert!(!told.contains("failure"), "{told}");
}

#[test]
fn a_kernel_that_begins_with_more_memory_is_left_out_with_the_reason() {
    let large = Module { memory: "(memory (export \"memory\") 3 256)".into(), ..Module::default() };
    let host = host(embedded(), &pack(&large));
    let explanation = host.explain(&OpKey::rmsnorm_f32()).to_string();
    let told =
        "begins with 196608 bytes of memory; the device class embedded gives an instance 131072";
    assert!(explanation.contains(told), "{explanation}");
    rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 1, 64).unwrap();
}

#[test]
fn a_kernel_that_leaves_too_little_memory_for_calls_is_left_out_with_the_reason() {
    let before_calls = taken(0, CallBytes::default());
    // A row of 2048 columns, its weights and the output.
    let most = (128 << 10) - before_calls - 3 * 2048 * 4;
    let explanation = |heap_base: usize| {
        let memory = "(memory (export \"memory\") 2 256)".to_owned();
        let heap_base = u32::try_from(heap_base).unwrap();
        let host = host(embedded(), &pack(&Module { memory, heap_base, ..Module::default() }));
        for dim in [64, 2048] {
            rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 1, dim).unwrap();
        }
        assert!(host.take_incidents().0.is_empty());
        host.explain(&OpKey::rmsnorm_f32())
    };
    let fits = explanation(most);
    assert_eq!(fits.selected.as_deref(), Some("rmsnorm_f32"), "{fits}");
    for (heap_base, told) in [
        (most + 64, "for a call that admission tries it on it takes 131136 bytes of memory"),
        ((128 << 10) - before_calls + 64, "before any call it takes 131136 bytes of memory"),
    ] {
        let left_out = explanation(heap_base);
        assert_eq!(left_out.selected.as_deref(), Some("native:rmsnorm_f32"), "{left_out}");
        let told = format!("{told}; the device class embedded gives an instance 131072");
        assert!(left_out.to_string().contains(&told), "{left_out}");
    }
}

#[test]
fn so_is_one_of_a_custom_operation_whose_calls_do_not_fit() {
    let heap_base = (128 << 10) - taken(0, CallBytes::default()) - 1024;
    let module = wat::assemble(&format!(
        r#"(module (memory (export "memory") 2 2)
          (global (export "__heap_base") i32 (i32.const {heap_base}))
          (func (export "run") (param i32) (result i32) (i32.const 0)))"#
    ));
    let pack = PackBuilder::new().entry(custom_entry("copy_f32", "copy", "run"), module).build();
    let host = host(embedded(), &pack);
    let key = OpKey::new("copy", vec![DType::F32], DType::F32);
    let explanation = host.explain(&key).to_string();
    assert!(explanation.contains("for a call that admission tries it on"), "{explanation}");
}

#[test]
fn a_call_ends_by_the_time_of_the_class() {
    let module = wat::assemble(
        r#"(module
          (memory (export "memory") 1 2)
          (global (export "__heap_base") i32 (i32.const 64))
          (func (export "run") (param $d i32) (result i32)
            (loop $l (br_if $l (i32.eq (i32.const 100) (i32.load (i32.load offset=32 (local.get $d))))))
            (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d))
              (i32.load offset=20 (local.get $d)))
            (i32.const 0)))"#,
    );
    let mut entry = custom_entry("copy_f32", "copy", "run");
    // Ten seconds, which the class bounds: nothing is known of how long a custom operation takes.
    entry.resource_limits.max_epoch_ticks = 10_000;
    entry.platforms.wasmtime.as_mut().unwrap().features = vec!["bulk-memory".to_owned()];
    let host = host(embedded(), &PackBuilder::new().entry(entry, module).build());
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let begun = std::time::Instant::now();
    let mut call = |n: usize| {
        let x = [Tensor::from_f32([n], &vec![1.0; n]).unwrap()];
        worker.call_generic(&snap, "test-kernels/copy_f32", &x, &[]).map(|y| y[0].to_f32())
    };
    assert_eq!(call(100).unwrap_err().code(), "kernel_deadline");
    // The class's 100 ms, not the manifest's ten seconds.
    let took = begun.elapsed().as_millis();
    assert!((100..2000).contains(&took), "{took} ms");
    assert_eq!(call(3).unwrap(), [1.0; 3]);
}

#[test]
fn recursion_ends_at_the_stack_of_the_class() {
    let deep = |stack| {
        // Sums of what comes back could be carried along instead, as compilers know, and no stack be needed.
        let depth = "(func $f (param i32) (result i32)
            (if (result i32) (i32.eqz (local.get 0)) (then (i32.const 1))
              (else (i32.rotl (call $f (i32.sub (local.get 0) (i32.const 1))) (local.get 0)))))";
        let module =
            Module { fields: depth.into(), ..but_for(100, "(drop (call $f (i32.const 2000)))") };
        let host = host(HostConfig { stack, ..config() }, &pack(&module));
        rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 1, 100).unwrap();
        host.take_incidents().0.first().and_then(|i| i.failure.trap().map(|trap| trap.kind))
    };
    assert_eq!(deep(DeviceClass::Server.config().stack), None);
    assert_eq!(deep(DeviceClass::Embedded.config().stack), Some(TrapKind::StackOverflow));
}
