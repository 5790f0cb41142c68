//! Parts of two valid packs are put together.

use crate::{KERNEL, good_kernel, good_pack, good_version, refused};
use ruvllm_tests::{PackBuilder, wat};

#[test]
fn a_signature_of_another_pack_by_the_same_key_is_refused() {
    let pack = good_pack();
    let other = good_version(&pack, "1.1.0");
    pack.write("kernels.json.sig", &other.bytes("kernels.json.sig"));
    assert_eq!(refused(&pack), ["signature_invalid"]);
}

#[test]
fn a_manifest_of_another_pack_is_refused_with_and_without_its_signature() {
    let pack = good_pack();
    let module = wat::rmsnorm_f32(&wat::Module { fields: "(func)".into(), ..Default::default() });
    let key = ruvllm_signing::SecretKey::from_pem(&pack.key().to_pem().unwrap()).unwrap();
    let other = PackBuilder::new().key(key).kernel("rmsnorm_f32", module).build();
    assert_ne!(other.bytes(KERNEL), good_kernel());
    pack.write("kernels.json", &other.bytes("kernels.json"));
    assert_eq!(refused(&pack), ["signature_invalid"]);
    pack.write("kernels.json.sig", &other.bytes("kernels.json.sig"));
    assert_eq!(refused(&pack), ["file_size_mismatch", "file_hash_mismatch"]);
    // With all of its files it is the other pack.
    pack.write(KERNEL, &other.bytes(KERNEL));
    assert!(pack.verify().is_ok());
}

#[test]
fn files_of_another_pack_beside_its_own_are_refused() {
    let pack = good_pack();
    pack.write("test/rmsnorm_f16.wasm", &good_kernel());
    assert_eq!(refused(&pack), ["file_unlisted"]);
}
