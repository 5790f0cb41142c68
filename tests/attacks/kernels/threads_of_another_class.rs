//! A kernel wants threads, or what they share, from a host that gives none.

use super::{pack, refused_by, threaded_pack};
use ruvllm_host::DeviceClass;
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};

#[test]
fn classes_without_threads_refuse_a_pack_that_needs_them() {
    let pack = threaded_pack(&Module::threaded());
    for class in [DeviceClass::Server, DeviceClass::Embedded] {
        // By the number of threads, and by the feature that it declares.
        let codes = refused_by(class.config(), &pack);
        assert_eq!(codes, ["threads_unsupported", "feature_unsupported"], "{class}");
    }
}

#[test]
fn atomics_and_shared_memory_are_for_kernels_that_ask_for_threads() {
    let atomic = "(drop (i32.atomic.load (i32.const 0)))".to_owned();
    let atomics = Module { prologue: atomic, ..Module::default() };
    let shared = Module { memory: Module::threaded().memory, ..Module::default() };
    for module in [atomics, shared] {
        for class in DeviceClass::ALL {
            let codes = refused_by(class.config(), &pack(&module));
            assert_eq!(codes, ["module_threads"], "{class}");
        }
    }
}

#[test]
fn the_feature_alone_is_not_enough() {
    let shared = Module { memory: Module::threaded().memory, ..Module::default() };
    let declares = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&shared))
        .threads(4)
        .manifest(|m| m.kernels[0].threads = 1)
        .build();
    assert_eq!(refused_by(DeviceClass::Server.config(), &declares), ["feature_unsupported"]);
    assert_eq!(refused_by(DeviceClass::Threads.config(), &declares), ["module_threads"]);
}
