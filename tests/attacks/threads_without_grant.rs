//! A kernel asks for threads, and its publisher is not trusted with them.

use crate::{refused_by, wat};
use ruvllm_signing::{Clock, Publisher, TrustPolicy, sign_manifest};
use ruvllm_tests::{PackBuilder, TestPack};

fn pack() -> TestPack {
    let module = wat::rmsnorm_f32(&wat::Module::threaded());
    PackBuilder::new().kernel("rmsnorm_f32", module).threads(4).build()
}

fn publisher(pack: &TestPack, name: &str, threads: bool) -> Publisher {
    Publisher { threads, ..pack.publisher(name) }
}

#[test]
fn threads_without_a_grant_are_refused() {
    let pack = pack();
    let policy = |threads| TrustPolicy::new(vec![publisher(&pack, "test", threads)], 1).unwrap();
    assert_eq!(refused_by(&pack, &policy(false), Clock::System), ["threads_not_granted"]);
    let error = pack.read().unwrap().verify(&policy(false), None).unwrap_err();
    assert!(error.to_string().contains("needs the grant `threads`"), "{error}");
    assert!(pack.read().unwrap().verify(&policy(true), None).is_ok());
    // Native code is another grant.
    let native = Publisher { native: true, ..publisher(&pack, "test", false) };
    let policy = TrustPolicy::new(vec![native], 1).unwrap();
    assert_eq!(refused_by(&pack, &policy, Clock::System), ["threads_not_granted"]);
}

#[test]
fn the_grant_of_one_is_not_enough_where_two_must_sign() {
    let (pack, other) = (pack(), crate::good_pack());
    let bytes = pack.bytes("kernels.json");
    let envelope = sign_manifest(&bytes, &[pack.key(), other.key()]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let policy = |second| {
        let first = publisher(&pack, "a", true);
        TrustPolicy::new(vec![first, publisher(&other, "b", second)], 2).unwrap()
    };
    assert_eq!(refused_by(&pack, &policy(false), Clock::System), ["threads_not_granted"]);
    assert!(pack.read().unwrap().verify(&policy(true), None).is_ok());
}
