//! Kernels with threads, in the class that has them.

use super::*;
use crate::{DeviceClass, Tensor, TrapKind};
use ruvllm_tests::custom_entry;
use ruvllm_tests::wat::{self, meet};
use std::time::{Duration, Instant};

/// The class with as many threads for a kernel as one may ask for, however many cores there are.
fn config() -> HostConfig {
    HostConfig { threads: Some(4), ..DeviceClass::Threads.config() }
}

fn threaded(module: &Module) -> TestPack {
    PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(module)).threads(4).build()
}

#[test]
fn threads_compute_the_rows_of_a_call() {
    let host = host(config(), &threaded(&Module::threaded()));
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    for (rows, dim) in [(1, 64), (3, 8), (4, 64), (600, 64), (9, 2048)] {
        rmsnorm(&mut worker, &snap, rows, dim).unwrap();
    }
    let mine = stats(&host, "rmsnorm_f32");
    assert_eq!((mine.calls, mine.fallbacks, mine.executor), (5, 0, "wasmtime"));
}

#[test]
fn a_kernel_is_entered_by_as_many_threads_as_it_asks_for_and_the_host_has() {
    for (host_has, asks_for, entered) in [(4, 4, 4), (2, 4, 2), (1, 4, 1), (4, 2, 2), (9, 3, 3)] {
        // Any other number is a status, once admission is over.
        let other = format!("(i32.ne (local.get $count) (i32.const {entered}))");
        let module = Module {
            threads: true,
            ..but_for(100, &format!("(if {other} (then (return (i32.const 9))))"))
        };
        let memory = Module::threaded().memory;
        let module = rmsnorm_f32(&Module { memory, ..module });
        let pack = PackBuilder::new().kernel("rmsnorm_f32", module).threads(asks_for).build();
        let host = host(HostConfig { threads: Some(host_has), ..config() }, &pack);
        rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 5, 100).unwrap();
        assert_eq!(stats(&host, "rmsnorm_f32").calls, 1, "{host_has} {asks_for}");
        let told = match entered == asks_for {
            true => format!("with up to {entered} threads over one memory"),
            false => format!(
                "with {entered} of the {asks_for} threads that it asks for, over one memory"
            ),
        };
        let explanation = host.explain(&OpKey::rmsnorm_f32()).to_string();
        assert!(explanation.contains(&told), "{explanation}");
    }
}

#[test]
fn elsewhere_a_variant_for_one_thread_of_the_same_pack_answers() {
    let [threaded, plain] = [Module::threaded(), Module::default()].map(|m| rmsnorm_f32(&m));
    let mut alone = None;
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", plain)
        .manifest(|m| alone = m.kernels.first().cloned());
    let mut entry = alone.unwrap();
    (entry.id, entry.path) = ("rmsnorm_4".to_owned(), "test/rmsnorm_4.wasm".parse().unwrap());
    entry.threads = 4;
    entry.platforms.wasmtime.as_mut().unwrap().features = vec!["threads".to_owned()];
    let pack = pack.entry(entry, threaded).build();
    for class in DeviceClass::ALL {
        let host = host(HostConfig { threads: Some(4), ..class.config() }, &pack);
        let explanation = host.explain(&OpKey::rmsnorm_f32()).to_string();
        let left_out = explanation.contains("asks for 4 threads, this host enters 1");
        assert_eq!(left_out, class != DeviceClass::Threads, "{explanation}");
        let told = if left_out { "--device-class threads" } else { "with up to 4 threads" };
        assert!(explanation.contains(told), "{explanation}");
        rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 3, 64).unwrap();
    }
}

/// A host with a custom operation `copy`, whose kernel may take ten seconds; what it has beside is as in
/// [`wat::threaded_copy`].
fn copying(fields: &str, begin: &str) -> Host {
    let mut entry = custom_entry("copy_f32", "copy", "run");
    entry.resource_limits.max_epoch_ticks = 10_000;
    let module = wat::threaded_copy(fields, begin, "");
    host(config(), &PackBuilder::new().entry(entry, module).threads(4).build())
}

/// Does something else with 100 numbers: the thread of index 0 `first`, and the others `others`.
fn for_100(first: &str, others: &str) -> String {
    format!(
        "(if (i32.eq (local.get $n) (i32.const 400))
           (then (if (local.get $index) (then {others}) (else {first}))))"
    )
}

/// Copies so many numbers.
fn copy(host: &Host, worker: &mut Worker, n: usize) -> Result<(), CallError> {
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let input = [Tensor::from_f32([n], &x).unwrap()];
    let y = worker.call_generic(&host.snapshot(), "test-kernels/copy_f32", &input, &[])?;
    assert_eq!(y[0].to_f32(), x);
    Ok(())
}

#[test]
fn threads_run_at_one_time_over_one_memory() {
    // None goes on before all have counted each other, at admission and here.
    let host = copying("", &meet(256));
    let mut worker = host.worker().unwrap();
    for n in [1, 7, 100] {
        copy(&host, &mut worker, n).unwrap();
    }
}

#[test]
fn what_one_thread_ends_by_ends_all_within_ticks_and_the_next_call_begins_anew() {
    let spin = "(loop $spin (br $spin))";
    for (first, others, code) in [
        (spin, "unreachable", "kernel_trap"),
        ("unreachable", spin, "kernel_trap"),
        ("(drop (i32.load (i32.const -4)))", spin, "kernel_trap"),
        ("(return (i32.const 3))", spin, "kernel_status"),
        (spin, "(return (i32.const 3))", "kernel_status"),
    ] {
        let host = copying("", &for_100(first, others));
        let mut worker = host.worker().unwrap();
        let begun = Instant::now();
        assert_eq!(copy(&host, &mut worker, 100).unwrap_err().code(), code);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        copy(&host, &mut worker, 7).unwrap();
    }
}

#[test]
fn a_trap_in_a_thread_tells_where_it_was() {
    let host = copying("", &for_100("", "(drop (i32.load (i32.const 0x20000)))"));
    copy(&host, &mut host.worker().unwrap(), 100).unwrap_err();
    let (incidents, _) = host.take_incidents();
    let trap = incidents[0].failure.trap().unwrap();
    assert_eq!(trap.kind, TrapKind::OutOfBounds);
    assert_eq!(trap.place.as_ref().unwrap().function, "run");
    assert_eq!(trap.access.unwrap().offset, Some(0x20000));
}

#[test]
fn each_thread_has_a_part_of_the_stack_and_globals_of_its_own() {
    // Below the pointer each leaves its index, and finds that it is still there when all have done so.
    let begin = format!(
        "(global.set $stack (i32.sub (global.get $stack) (i32.const 16)))
         (i32.store (global.get $stack) (local.get $index))
         {}
         (if (i32.ne (i32.load (global.get $stack)) (local.get $index))
           (then (return (i32.const 6))))
         (global.set $stack (i32.add (global.get $stack) (i32.const 16)))",
        meet(768)
    );
    let stack = r#"(global $stack (export "__stack_pointer") (mut i32) (i32.const 512))"#;
    let host = copying(stack, &begin);
    let mut worker = host.worker().unwrap();
    for n in [3, 40, 1] {
        copy(&host, &mut worker, n).unwrap();
    }
}
