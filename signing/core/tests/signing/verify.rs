//! Which packs are verified, and why others are not.

use ruvllm_signing::{
    Clock, Envelope, MANIFEST_FILE, PackError, PackLimits, Publisher, SIGNATURE_FILE, SecretKey,
    TrustPolicy, UnverifiedPack, VersionFloor, sign_manifest,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;

const EXAMPLE: &str = include_str!("../../../../manifests/schema/example.json");
const MODULE: &[u8] = b"\0asm\x01\0\0\0";
const NOW: &str = "2026-06-01T00:00:00Z";

/// The example manifest for [`MODULE`].
fn manifest(edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut json: Value = serde_json::from_str(EXAMPLE).unwrap();
    let hash: String = Sha256::digest(MODULE).iter().map(|b| format!("{b:02x}")).collect();
    json["kernels"][0]["hash"] = json!(format!("sha256:{hash}"));
    json["kernels"][0]["size"] = json!(MODULE.len());
    json["kernels"][0]["platforms"].as_object_mut().unwrap().remove("native");
    json["kernels"][0].as_object_mut().unwrap().remove("threads");
    edit(&mut json);
    json.to_string().into_bytes()
}

fn pack(manifest: &[u8], envelope: &Envelope) -> UnverifiedPack {
    let files = [
        (MANIFEST_FILE, manifest.to_vec()),
        (SIGNATURE_FILE, envelope.to_json().into_bytes()),
        ("rope/rope_f32.wasm", MODULE.to_vec()),
    ];
    let files = files.map(|(name, bytes)| (name.to_owned(), Cow::Owned(bytes)));
    UnverifiedPack::from_files(files, &PackLimits::default()).unwrap()
}

fn publisher(name: &str, key: &SecretKey) -> Publisher {
    Publisher {
        name: name.to_owned(),
        key: key.public_key(),
        packs: vec!["ruvllm-*".parse().unwrap()],
        native: false,
        threads: false,
        wasi_nn: false,
        not_before: None,
        not_after: None,
    }
}

fn verify(keys: &[&SecretKey], policy: &TrustPolicy) -> Result<Vec<String>, Vec<&'static str>> {
    let bytes = manifest(|_| ());
    let envelope = sign_manifest(&bytes, keys).unwrap();
    outcome(pack(&bytes, &envelope).verify_at(policy, None, NOW.parse().unwrap()))
}

fn outcome(
    result: Result<ruvllm_signing::VerifiedPack, PackError>,
) -> Result<Vec<String>, Vec<&'static str>> {
    result
        .map(|pack| pack.publishers().iter().map(|s| s.publisher.clone()).collect())
        .map_err(|e| e.violations().iter().map(|v| v.code).collect())
}

fn keys() -> [SecretKey; 3] {
    std::array::from_fn(|_| SecretKey::generate().unwrap())
}

#[test]
fn a_good_pack_gives_its_contents() {
    let [a, ..] = keys();
    let bytes = manifest(|_| ());
    let policy = TrustPolicy::new(vec![publisher("a", &a)], 1).unwrap();
    let envelope = sign_manifest(&bytes, &[&a]).unwrap();
    let pack = pack(&bytes, &envelope).verify(&policy, None).unwrap();
    assert_eq!(pack.kernel_bytes("rope_f32"), Some(MODULE));
    assert_eq!(pack.kernel_bytes("other"), None);
    assert_eq!(pack.kernels().count(), 1);
    assert_eq!(pack.digest().as_bytes()[..], Sha256::digest(&bytes)[..]);
    assert_eq!(pack.publishers()[0].key_id, a.public_key().key_id());
    assert!(!pack.native_granted());
}

#[test]
fn the_threshold_counts_different_publishers() {
    let [a, b, c] = keys();
    let both = vec![publisher("a", &a), publisher("b", &b)];
    let two = TrustPolicy::new(both.clone(), 2).unwrap();
    assert_eq!(verify(&[&a, &b], &two), Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(verify(&[&a], &two), Err(vec!["threshold_not_met"]));
    assert_eq!(verify(&[&a, &c], &two), Err(vec!["signature_unknown_key", "threshold_not_met"]));
    let one = TrustPolicy::new(both, 1).unwrap();
    assert_eq!(verify(&[&c, &b], &one), Ok(vec!["b".to_owned()]));
    assert_eq!(verify(&[&c], &one), Err(vec!["signature_unknown_key"]));
}

#[test]
fn one_key_under_two_ids_counts_once() {
    let [a, b, c] = keys();
    let bytes = manifest(|_| ());
    let signature = a.sign(&bytes);
    let ids = [a.public_key().key_id(), c.public_key().key_id()];
    let envelope = Envelope::from_signatures(ids.map(|id| (id, signature)).to_vec()).unwrap();
    let policy = TrustPolicy::new(vec![publisher("a", &a), publisher("b", &b)], 2).unwrap();
    let result = pack(&bytes, &envelope).verify_at(&policy, None, NOW.parse().unwrap());
    assert_eq!(outcome(result), Err(vec!["signature_repeated", "threshold_not_met"]));
}

#[test]
fn the_key_id_is_a_hint_but_a_false_signature_of_a_known_key_is_not_forgiven() {
    let [a, b, c] = keys();
    let bytes = manifest(|_| ());
    let policy = TrustPolicy::new(vec![publisher("a", &a), publisher("b", &b)], 1).unwrap();
    let run = |signatures| {
        let envelope = Envelope::from_signatures(signatures).unwrap();
        outcome(pack(&bytes, &envelope).verify_at(&policy, None, NOW.parse().unwrap()))
    };
    let unknown = c.public_key().key_id();
    assert_eq!(run(vec![(unknown, a.sign(&bytes))]), Ok(vec!["a".to_owned()]));
    let (good, forged) = (a.sign(&bytes), a.sign(b"other"));
    let ids = (a.public_key().key_id(), b.public_key().key_id());
    assert_eq!(run(vec![(ids.0, good), (ids.1, forged)]), Err(vec!["signature_invalid"]));
}

#[test]
fn validity_begins_inclusive_and_ends_exclusive() {
    let [a, ..] = keys();
    let at = |from: Option<&str>, until: Option<&str>| {
        let mut publisher = publisher("a", &a);
        publisher.not_before = from.map(|t| t.parse().unwrap());
        publisher.not_after = until.map(|t| t.parse().unwrap());
        verify(&[&a], &TrustPolicy::new(vec![publisher], 1).unwrap()).err()
    };
    assert_eq!(at(Some(NOW), Some("2026-06-01T00:00:01Z")), None);
    assert_eq!(at(Some("2026-06-01T00:00:01Z"), None), Some(vec!["publisher_not_yet_valid"]));
    assert_eq!(at(None, Some(NOW)), Some(vec!["publisher_expired"]));
}

#[test]
fn without_a_clock_bounds_do_not_count_unless_the_policy_says_so() {
    let [a, ..] = keys();
    let bytes = manifest(|_| ());
    let envelope = sign_manifest(&bytes, &[&a]).unwrap();
    let run = |bounded: bool, accept: bool, clock: Clock| {
        let mut publisher = publisher("a", &a);
        publisher.not_after = bounded.then(|| "2030-01-01T00:00:00Z".parse().unwrap());
        let policy = TrustPolicy::new(vec![publisher], 1).unwrap();
        let policy = policy.with_accepts_without_clock(accept);
        outcome(pack(&bytes, &envelope).verify_with(&policy, None, clock)).err()
    };
    assert_eq!(run(false, false, Clock::None), None);
    assert_eq!(run(true, false, Clock::None), Some(vec!["clock_unknown"]));
    assert_eq!(run(true, true, Clock::None), None);
    assert_eq!(run(true, false, Clock::Fixed(NOW.parse().unwrap())), None);
    let late = Clock::Fixed("2030-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(run(true, true, late), Some(vec!["publisher_expired"]));
}

#[test]
fn two_keys_of_one_publisher_count_once_and_one_of_them_in_scope_is_enough() {
    let [old, new, b] = keys();
    let policy = |threshold| {
        let mut narrow = publisher("a", &old);
        narrow.packs = vec!["acme-*".parse().unwrap()];
        let all = vec![narrow, publisher("a", &new), publisher("b", &b)];
        TrustPolicy::new(all, threshold).unwrap()
    };
    assert!(TrustPolicy::new(policy(1).publishers().to_vec(), 3).is_err());
    assert!(verify(&[&old, &new], &policy(1)).is_ok());
    assert!(verify(&[&new, &b], &policy(2)).is_ok());
    assert_eq!(verify(&[&old, &new], &policy(2)), Err(vec!["threshold_not_met"]));
    assert_eq!(
        verify(&[&old, &b], &policy(2)),
        Err(vec!["publisher_out_of_scope", "threshold_not_met"])
    );
}

#[test]
fn a_revoked_key_never_counts() {
    let [a, b, c] = keys();
    let both = vec![publisher("a", &a), publisher("b", &b)];
    let revoke = |threshold, key: &SecretKey| {
        TrustPolicy::new(both.clone(), threshold).unwrap().with_revoked([key.public_key()])
    };
    assert_eq!(verify(&[&a], &revoke(1, &a)), Err(vec!["key_revoked"]));
    assert_eq!(verify(&[&a, &b], &revoke(1, &a)), Ok(vec!["b".to_owned()]));
    assert_eq!(verify(&[&a, &b], &revoke(2, &a)), Err(vec!["key_revoked", "threshold_not_met"]));
    // One that no publisher has is named as what it is.
    assert_eq!(verify(&[&c], &revoke(1, &c)), Err(vec!["key_revoked"]));
}

#[test]
fn a_publisher_signs_only_packs_in_its_scope() {
    let [a, b, _] = keys();
    let mut other = publisher("a", &a);
    other.packs = vec!["acme-*".parse().unwrap()];
    let policy = TrustPolicy::new(vec![other.clone()], 1).unwrap();
    assert_eq!(verify(&[&a], &policy), Err(vec!["publisher_out_of_scope"]));
    let two = TrustPolicy::new(vec![other, publisher("b", &b)], 2).unwrap();
    assert_eq!(verify(&[&a, &b], &two), Err(vec!["publisher_out_of_scope", "threshold_not_met"]));
}

#[test]
fn native_code_needs_the_grant_of_as_many_as_must_sign() {
    let [a, b, _] = keys();
    let granted = |natives: [bool; 2], threshold| {
        let mut publishers = vec![publisher("a", &a), publisher("b", &b)];
        for (publisher, native) in publishers.iter_mut().zip(natives) {
            publisher.native = native;
        }
        let bytes = manifest(|_| ());
        let envelope = sign_manifest(&bytes, &[&a, &b]).unwrap();
        let policy = TrustPolicy::new(publishers, threshold).unwrap();
        pack(&bytes, &envelope).verify(&policy, None).unwrap().native_granted()
    };
    assert!(granted([true, false], 1) && granted([true, true], 2));
    assert!(!granted([true, false], 2) && !granted([false, false], 1));
}

#[test]
fn threads_need_the_grant_of_as_many_as_must_sign() {
    let [a, b, _] = keys();
    let bytes = manifest(|m| m["kernels"][0]["threads"] = json!(2));
    let envelope = sign_manifest(&bytes, &[&a, &b]).unwrap();
    let run = |granted: [bool; 2], threshold| {
        let mut publishers = vec![publisher("a", &a), publisher("b", &b)];
        for (publisher, threads) in publishers.iter_mut().zip(granted) {
            publisher.threads = threads;
        }
        let policy = TrustPolicy::new(publishers, threshold).unwrap();
        outcome(pack(&bytes, &envelope).verify(&policy, None)).map(drop)
    };
    assert_eq!((run([true, false], 1), run([true, true], 2)), (Ok(()), Ok(())));
    for (granted, threshold) in [([true, false], 2), ([false, false], 1)] {
        assert_eq!(run(granted, threshold), Err(vec!["threads_not_granted"]));
    }
}

#[test]
fn a_native_library_is_a_listed_file_that_needs_the_grant() {
    let [a, ..] = keys();
    let bytes = manifest(|m| {
        let hash: String = Sha256::digest(b"elf").iter().map(|b| format!("{b:02x}")).collect();
        m["kernels"][0]["platforms"]["native"]["targets"]["x86_64-linux"] =
            json!({ "path": "native/a.so", "size": 3, "hash": format!("sha256:{hash}") });
    });
    let envelope = sign_manifest(&bytes, &[&a]).unwrap();
    let run = |native: bool, library: &[u8]| {
        let mut pack = pack(&bytes, &envelope);
        let files = pack
            .files()
            .map(|(path, bytes)| (path.to_owned(), Cow::Owned(bytes.to_vec())))
            .chain([("native/a.so".to_owned(), Cow::Owned(library.to_vec()))])
            .collect::<Vec<_>>();
        pack = UnverifiedPack::from_files(files, &PackLimits::default()).unwrap();
        let mut publisher = publisher("a", &a);
        publisher.native = native;
        pack.verify(&TrustPolicy::new(vec![publisher], 1).unwrap(), None)
    };
    let granted = run(true, b"elf").unwrap();
    assert_eq!(granted.native_library("rope_f32", "x86_64-linux"), Some(&b"elf"[..]));
    assert_eq!(granted.native_library("rope_f32", "aarch64-linux"), None);
    assert_eq!(outcome(run(true, b"ELF")), Err(vec!["file_hash_mismatch"]));
    assert_eq!(outcome(run(false, b"elf")), Err(vec!["native_not_granted"]));
}

#[test]
fn a_version_below_the_floor_is_refused_and_the_floor_itself_is_not() {
    let [a, ..] = keys();
    let dir = tempfile::tempdir().unwrap();
    let floor = VersionFloor::open(dir.path()).unwrap();
    let policy = TrustPolicy::new(vec![publisher("a", &a)], 1).unwrap();
    let run = |version: &str| {
        let bytes = manifest(|m| m["version"] = json!(version));
        let envelope = sign_manifest(&bytes, &[&a]).unwrap();
        pack(&bytes, &envelope).verify(&policy, Some(&floor))
    };
    let active = run("1.1.0").unwrap();
    assert!(run("1.0.0").is_ok());
    floor.raise(&active).unwrap();
    assert_eq!(outcome(run("1.0.0")), Err(vec!["version_below_floor"]));
    assert_eq!(outcome(run("1.1.0-rc.1")), Err(vec!["version_below_floor"]));
    assert!(run("1.1.0").is_ok() && run("1.1.1").is_ok());
    let file = dir.path().join("ruvllm-core-kernels.floor");
    std::fs::write(file, b"{").unwrap();
    assert_eq!(run("9.0.0").unwrap_err().code(), "floor_damaged");
}

#[test]
fn nothing_of_an_untrusted_manifest_is_read() {
    let [a, b, _] = keys();
    let policy = TrustPolicy::new(vec![publisher("a", &a)], 1).unwrap();
    let run = |key: &SecretKey| {
        let bytes = b"no manifest at all";
        let envelope = sign_manifest(bytes, &[key]).unwrap();
        outcome(pack(bytes, &envelope).verify(&policy, None))
    };
    assert_eq!(run(&b), Err(vec!["signature_unknown_key"]));
    assert_eq!(run(&a), Err(vec!["manifest_syntax"]));
}

#[test]
fn everything_wrong_with_the_files_is_reported_together() {
    let [a, ..] = keys();
    let bytes = manifest(|m| {
        m["kernels"][0]["size"] = json!(7);
        let mut second = m["kernels"][0].clone();
        second["id"] = json!("rope_again");
        second["path"] = json!("rope/again.wasm");
        m["kernels"].as_array_mut().unwrap().push(second);
    });
    let envelope = sign_manifest(&bytes, &[&a]).unwrap();
    let files = [
        (MANIFEST_FILE, bytes),
        (SIGNATURE_FILE, envelope.to_json().into_bytes()),
        ("rope/rope_f32.wasm", b"changed!".to_vec()),
        ("README.md", b"hello".to_vec()),
    ];
    let files = files.map(|(name, bytes)| (name.to_owned(), Cow::Owned(bytes)));
    let pack = UnverifiedPack::from_files(files, &PackLimits::default()).unwrap();
    let policy = TrustPolicy::new(vec![publisher("a", &a)], 1).unwrap();
    assert_eq!(
        outcome(pack.verify(&policy, None)),
        Err(vec!["file_size_mismatch", "file_hash_mismatch", "file_missing", "file_unlisted"])
    );
}

#[test]
fn a_pack_without_its_two_documents_says_which() {
    let empty = UnverifiedPack::from_files([], &PackLimits::default()).unwrap();
    let result = empty.verify(&TrustPolicy::builtin(), None);
    assert_eq!(outcome(result), Err(vec!["manifest_missing", "signature_missing"]));
}

#[test]
fn files_from_memory_are_held_to_the_same_rules_as_a_directory() {
    let read = |files: &[(&str, usize)], limits: PackLimits| {
        let files =
            files.iter().map(|(name, size)| ((*name).to_owned(), Cow::Owned(vec![0; *size])));
        match UnverifiedPack::from_files(files, &limits) {
            Ok(_) => Vec::new(),
            Err(e) => e.violations().iter().map(|v| v.code).collect(),
        }
    };
    let limits = PackLimits { max_entries: 3, max_file_bytes: 10, max_total_bytes: 25 };
    assert_eq!(read(&[("a", 10), ("b", 10)], limits), [""; 0]);
    assert_eq!(read(&[("../a", 1), ("/b", 1)], limits), ["path_escapes"; 2]);
    assert_eq!(read(&[("a b", 1)], limits), ["path_invalid"]);
    assert_eq!(read(&[("d/a", 1), ("D/A", 1)], limits), ["path_case_duplicate"]);
    assert_eq!(read(&[("a", 11)], limits), ["file_too_large"]);
    assert_eq!(read(&[("a", 10), ("b", 10), ("c", 10)], limits), ["pack_too_large"]);
    assert_eq!(read(&[("a", 0), ("b", 0), ("c", 0), ("d", 0)], limits), ["pack_too_many_files"]);
}
