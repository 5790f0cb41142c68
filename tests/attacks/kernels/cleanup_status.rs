//! `kernel_cleanup` returns a status other than `OK`.

use super::{LATER, config, pack, refused, rmsnorm};
use ruvllm_host::Host;
use ruvllm_tests::wat::{Module, but_for};

#[test]
fn a_kernel_that_cannot_tidy_up_is_refused() {
    for status in [1, 6, 7, -1] {
        let fields = format!(r#"(func (export "kernel_cleanup") (result i32) i32.const {status})"#);
        let module = Module { fields, ..Module::default() };
        assert_eq!(refused(&pack(&module)), ["kernel_cleanup"], "{status}");
    }
}

#[test]
fn a_status_later_is_reported_and_counted() {
    let fields = r#"(global $late (mut i32) (i32.const 0))
        (func (export "kernel_cleanup") (result i32) (global.get $late))"#;
    let late = but_for(LATER, "(global.set $late (i32.const 4))");
    let module = Module { fields: fields.to_owned(), ..late };
    let host = Host::new(config()).unwrap();
    host.install(pack(&module).verify().unwrap()).unwrap();
    rmsnorm(&host, 1);
    let (incidents, _) = host.take_incidents();
    let [incident] = &incidents[..] else { panic!("{incidents:?}") };
    assert_eq!(incident.failure.code(), "kernel_cleanup");
    let said = incident.to_string();
    assert!(said.contains("status 4 (OUT_OF_MEMORY) from kernel_cleanup"), "{said}");
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert_eq!(stats.failures.get("kernel_cleanup"), Some(&1));
}
