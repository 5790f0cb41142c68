//! `kernel_cleanup` does not return, which nobody waits for.

use super::{LATER, config, hasty_pack, pack, refused, rmsnorm};
use ruvllm_host::Host;
use ruvllm_tests::wat::{Module, but_for};
use std::time::{Duration, Instant};

#[test]
fn an_endless_cleanup_is_refused() {
    let fields = r#"(func (export "kernel_cleanup") (loop $l (br $l)))"#;
    let module = Module { fields: fields.to_owned(), ..Module::default() };
    assert_eq!(refused(&hasty_pack(&module)), ["kernel_cleanup"]);
}

#[test]
fn a_cleanup_that_traps_is_refused() {
    let fields = r#"(func (export "kernel_cleanup") unreachable)"#;
    let module = Module { fields: fields.to_owned(), ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["kernel_cleanup"]);
}

#[test]
fn an_endless_cleanup_later_is_reported_and_not_asked_for_again() {
    let fields = r#"(global $late (mut i32) (i32.const 0))
        (func (export "kernel_cleanup") (loop $l (br_if $l (global.get $late))))"#;
    let late = but_for(LATER, "(global.set $late (i32.const 1))");
    let module = Module { fields: fields.to_owned(), ..late };
    let host = Host::new(config()).unwrap();
    host.install(pack(&module).verify().unwrap()).unwrap();
    let started = Instant::now();
    // Each has a worker of its own, which lets go of its instance.
    for _ in 0..20 {
        rmsnorm(&host, 1);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let (incidents, _) = host.take_incidents();
    let codes: Vec<_> = incidents.iter().map(|incident| incident.failure.code()).collect();
    assert_eq!(codes, ["kernel_cleanup"]);
}
