//! The module gate: any bytes are judged, without a panic and in bounded time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_host::{HostLimits, check_module, module_features};

fuzz_target!(|bytes: &[u8]| {
    let refusals = check_module(bytes, "kv_unpack_forward", &HostLimits::default());
    // What passes is valid WebAssembly of features that this host knows.
    assert!(!refusals.is_empty() || module_features(bytes).is_ok());
});
