//! A pack brings code that runs outside of the sandbox, and its publisher is not trusted for that.

use crate::{good_kernel, refused, refused_by};
use indexmap::IndexMap;
use ruvllm_manifest::{NativeLibrary, NativePlatform, Sha256Hex};
use ruvllm_signing::{Clock, Publisher, TrustPolicy, sign_manifest};
use ruvllm_tests::{PackBuilder, TestPack, codes};
use sha2::{Digest, Sha256};

const LIBRARY: &str = "native/x86_64-linux.so";

fn pack_with_library() -> TestPack {
    let bytes = b"\x7fELF of a test";
    let library = NativeLibrary {
        path: LIBRARY.parse().unwrap(),
        size: bytes.len() as u64,
        hash: Sha256Hex::from_bytes(Sha256::digest(bytes).into()),
    };
    let native = NativePlatform {
        min_runtime_version: None,
        targets: IndexMap::from([("x86_64-linux".to_owned(), library)]),
    };
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", good_kernel())
        .manifest(|m| m.kernels[0].platforms.native = Some(native))
        .build();
    pack.write(LIBRARY, bytes);
    pack
}

fn granted(pack: &TestPack, name: &str) -> Publisher {
    Publisher { native: true, ..pack.publisher(name) }
}

#[test]
fn a_native_library_without_a_grant_is_refused_as_a_whole() {
    let pack = pack_with_library();
    assert_eq!(refused(&pack), ["native_not_granted"]);
    let policy = TrustPolicy::new(vec![granted(&pack, "test")], 1).unwrap();
    let verified = pack.read().unwrap().verify(&policy, None).unwrap();
    assert!(verified.native_library("rmsnorm_f32", "x86_64-linux").is_some());
    // The grant does not make its bytes anyone's but the publisher's.
    pack.flip(LIBRARY, 3);
    assert_eq!(refused_by(&pack, &policy, Clock::System), ["file_hash_mismatch"]);
}

#[test]
fn the_grant_of_one_is_not_enough_where_two_must_sign() {
    let (pack, other) = (pack_with_library(), crate::good_pack());
    let bytes = pack.bytes("kernels.json");
    let envelope = sign_manifest(&bytes, &[pack.key(), other.key()]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let policy = |second| TrustPolicy::new(vec![granted(&pack, "a"), second], 2).unwrap();
    let one = policy(other.publisher("b"));
    assert_eq!(refused_by(&pack, &one, Clock::System), ["native_not_granted"]);
    assert!(pack.read().unwrap().verify(&policy(granted(&other, "b")), None).is_ok());
}

#[test]
fn a_library_that_the_manifest_does_not_list_is_an_unlisted_file() {
    let pack = crate::good_pack();
    pack.write(LIBRARY, b"\x7fELF");
    let policy = TrustPolicy::new(vec![granted(&pack, "test")], 1).unwrap();
    let error = pack.read().unwrap().verify(&policy, None).unwrap_err();
    assert_eq!(codes(&error), ["file_unlisted"]);
}
