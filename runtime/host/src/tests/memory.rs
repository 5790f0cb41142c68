//! What instances of kernels take of memory is counted, and bounded without loss.

use super::*;
use crate::Resident;
use std::thread;

const MIB: usize = 1 << 20;

/// A pack of the name whose kernel begins with so many MiB of memory.
fn large(name: &str, mib: usize, module: &Module) -> TestPack {
    let pages = 16 * mib;
    let memory = format!(r#"(memory (export "memory") {pages} {})"#, pages + 16);
    let module = Module { memory, ..module.clone() };
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| {
            m.name = name.parse().unwrap();
            m.kernels[0].resource_limits.max_memory_pages = pages as u32 + 16;
        })
        .build()
}

fn limited(kernel_mib: usize, pack_mib: usize) -> HostConfig {
    HostConfig { kernel_memory: kernel_mib * MIB, pack_memory: pack_mib * MIB, ..config() }
}

fn used(host: &Host) -> usize {
    host.kernel_memory().used
}

fn call(host: &Host, worker: &mut Worker) {
    rmsnorm(worker, &host.snapshot(), 1, 64).unwrap();
}

#[test]
fn the_count_is_what_instances_have_and_zero_when_they_are_gone() {
    let pack = large("large", 2, &Module::default());
    let host = host(config(), &pack);
    assert_eq!(used(&host), 0, "admission has left something");
    let mut workers = [host.worker().unwrap(), host.worker().unwrap()];
    for (n, worker) in workers.iter_mut().enumerate() {
        call(&host, worker);
        let (low, high) = ((n + 1) * 2 * MIB, (n + 1) * (2 * MIB + MIB / 8));
        assert!(
            (low..=high).contains(&used(&host)),
            "{} bytes for {} instances",
            used(&host),
            n + 1
        );
    }
    let before = used(&host);
    // More than the memory has, which grows by half a MiB for it.
    let constant = Resident::from_f32(&vec![1.0; (2 * MIB + MIB / 2) / 4]);
    let x = [1.0; 64];
    let part = Operand::Resident(&constant, 0..256);
    rmsnorm_with(&mut workers[0], &host.snapshot(), 1, 64, Operand::f32(&x), part).unwrap();
    let more = used(&host) - before;
    assert!((MIB / 2..=MIB / 2 + MIB / 8).contains(&more), "{more} bytes more");
    let [one, other] = workers;
    drop(one);
    assert!(used(&host) <= 2 * MIB + MIB / 8, "{} bytes of one instance", used(&host));
    drop(other);
    assert_eq!(used(&host), 0);
}

#[test]
fn a_generation_that_drains_counts_until_its_instances_are_gone() {
    let host = host(config(), &large("large", 2, &Module::default()));
    let mut worker = host.worker().unwrap();
    call(&host, &mut worker);
    let old = host.snapshot();
    host.install(pack(&Module::default()).verify().unwrap()).unwrap();
    assert!(host.remove("large"));
    call(&host, &mut worker);
    assert!(used(&host) > 2 * MIB, "{} bytes of two generations", used(&host));
    drop(old);
    call(&host, &mut worker);
    // The reaper drops it, some milliseconds later.
    let gone = (0..1000).any(|_| {
        thread::sleep(std::time::Duration::from_millis(2));
        used(&host) < MIB
    });
    assert!(gone, "{} bytes after the old generation is gone", used(&host));
    assert!(host.remove("test-kernels"));
    drop(worker);
    let gone = (0..1000).any(|_| {
        thread::sleep(std::time::Duration::from_millis(2));
        used(&host) == 0
    });
    assert!(gone, "{} bytes of nothing", used(&host));
}

#[test]
fn what_does_not_fit_a_packs_share_is_answered_by_the_next_and_blames_nobody() {
    let host = host(limited(64, 10), &large("large", 4, &Module::default()));
    let mut workers: Vec<Worker> = (0..4).map(|_| host.worker().unwrap()).collect();
    for _ in 0..5 {
        workers.iter_mut().for_each(|worker| call(&host, worker));
        assert!(used(&host) <= 10 * MIB, "{} bytes", used(&host));
    }
    let kernel = stats(&host, "rmsnorm_f32");
    assert_eq!((kernel.calls, kernel.fallbacks, kernel.quarantined), (10, 10, false));
    assert_eq!(kernel.failures["pack_memory_full"], 10);
    assert_eq!(stats(&host, "native:rmsnorm_f32").calls, 10);
    let (incidents, _) = host.take_incidents();
    assert_eq!(incidents.len(), 2, "one of each worker that had to do without");
    assert!(incidents[0].to_string().contains("--memory"), "{}", incidents[0]);
    let told = host.explain(&OpKey::rmsnorm_f32()).to_string();
    assert!(told.contains("passed 10 calls on for want of memory [pack_memory_full]"), "{told}");
    // Where others make room, it is asked again.
    workers.remove(0);
    workers.iter_mut().for_each(|worker| call(&host, worker));
    assert_eq!(stats(&host, "rmsnorm_f32").calls, 12);
}

#[test]
fn one_pack_leaves_another_the_rest_of_the_hosts_memory_and_no_more() {
    let host = host(limited(16, 12), &large("greedy", 5, &Module::default()));
    let mut workers: Vec<Worker> = (0..4).map(|_| host.worker().unwrap()).collect();
    workers.iter_mut().for_each(|worker| call(&host, worker));
    assert_eq!(stats(&host, "rmsnorm_f32").calls, 2);
    // The last quarter is enough to prove another, whose instances then do not all fit either.
    host.install(large("other", 2, &Module::default()).verify().unwrap()).unwrap();
    workers.iter_mut().for_each(|worker| call(&host, worker));
    let other = stats(&host, "rmsnorm_f32");
    assert_eq!((other.pack.as_str(), other.quarantined), ("other", false));
    assert!(other.calls > 0 && other.failures["kernel_memory_full"] > 0, "{other:?}");
    assert!(used(&host) <= 16 * MIB, "{} bytes", used(&host));
}

#[test]
fn a_pack_that_begins_with_more_than_its_share_is_refused() {
    let host = Host::new(limited(64, 10)).unwrap();
    let install = |mib| host.install(large("large", mib, &Module::default()).verify().unwrap());
    let error = install(11).unwrap_err();
    assert_eq!(error.code(), "pack_memory_over_limit");
    assert!(error.to_string().contains("--memory"), "{error}");
    install(9).unwrap();
}

#[test]
fn instances_of_a_kernel_that_is_out_of_service_are_let_go_by_every_worker() {
    let config = HostConfig { quarantine_after: 1, ..config() };
    let host = host(config, &large("large", 2, &but_for(100, "unreachable")));
    let (mut one, mut other) = (host.worker().unwrap(), host.worker().unwrap());
    call(&host, &mut one);
    call(&host, &mut other);
    assert!(used(&host) > 4 * MIB);
    rmsnorm(&mut one, &host.snapshot(), 1, 100).unwrap();
    assert!(stats(&host, "rmsnorm_f32").quarantined);
    call(&host, &mut other);
    let gone = (0..1000).any(|_| {
        thread::sleep(std::time::Duration::from_millis(2));
        used(&host) == 0
    });
    assert!(gone, "{} bytes of a kernel that nobody calls", used(&host));
}

#[test]
fn a_host_part_that_begins_beyond_the_memory_is_told_as_that_and_not_as_want_of_memory() {
    let module = Module { heap_base: u32::MAX - 100, ..Module::default() };
    assert_eq!(refusal(&super::pack(&module)), "kernel_instantiate");
}
