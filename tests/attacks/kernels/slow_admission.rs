//! Each call of admission takes less than its deadline, and all of them for ever.

use super::{begins_with, pack};
use ruvllm_host::{Host, HostConfig};
use std::time::Duration;

#[test]
fn a_pack_that_takes_too_long_to_prove_itself_is_refused() {
    let slow = pack(&begins_with(
        "(local.set $i (i32.const 1000000))
         (loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))",
    ));
    let install = |admission_time| {
        let host = Host::new(HostConfig { admission_time, ..HostConfig::default() }).unwrap();
        host.install(slow.verify().unwrap()).map(drop)
    };
    install(Duration::from_secs(60)).unwrap();
    let error = install(Duration::from_millis(5)).unwrap_err();
    assert_eq!(error.code(), "admission_timeout");
}
