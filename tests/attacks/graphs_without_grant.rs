//! A kernel computes graphs of its pack, and its publisher is not trusted for that.

use crate::{good_kernel, refused, refused_by};
use ruvllm_manifest::WASI_NN;
use ruvllm_signing::{Clock, Publisher, TrustPolicy, sign_manifest};
use ruvllm_tests::{PackBuilder, TestPack};

fn asking() -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", good_kernel())
        .manifest(|m| {
            let platform = m.kernels[0].platforms.wasmtime.as_mut().unwrap();
            platform.features.push(WASI_NN.to_owned());
        })
        .build()
}

fn granted(pack: &TestPack, name: &str) -> Publisher {
    Publisher { wasi_nn: true, ..pack.publisher(name) }
}

#[test]
fn a_kernel_that_asks_for_graphs_without_a_grant_is_refused_with_its_pack() {
    let pack = asking();
    assert_eq!(refused(&pack), ["wasi_nn_not_granted"]);
    let policy = TrustPolicy::new(vec![granted(&pack, "test")], 1).unwrap();
    assert!(pack.read().unwrap().verify(&policy, None).is_ok());
    // Another grant is none.
    let native = Publisher { native: true, ..pack.publisher("test") };
    let policy = TrustPolicy::new(vec![native], 1).unwrap();
    assert_eq!(refused_by(&pack, &policy, Clock::System), ["wasi_nn_not_granted"]);
}

#[test]
fn the_grant_of_one_is_not_enough_where_two_must_sign() {
    let (pack, other) = (asking(), crate::good_pack());
    let bytes = pack.bytes("kernels.json");
    let envelope = sign_manifest(&bytes, &[pack.key(), other.key()]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let policy = |second| TrustPolicy::new(vec![granted(&pack, "a"), second], 2).unwrap();
    let one = policy(other.publisher("b"));
    assert_eq!(refused_by(&pack, &one, Clock::System), ["wasi_nn_not_granted"]);
    assert!(pack.read().unwrap().verify(&policy(granted(&other, "b")), None).is_ok());
}
