//! A pack as a directory and as one file.

use ruvllm_signing::{
    MANIFEST_FILE, PackLimits, Publisher, SIGNATURE_FILE, SecretKey, TrustPolicy, UnverifiedPack,
    sign_manifest,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::process::Command;

const EXAMPLE: &str = include_str!("../../../../manifests/schema/example.json");

/// A pack of one kernel whose module has this length, and a policy that trusts it.
fn pack(length: usize) -> (UnverifiedPack, TrustPolicy) {
    let module = vec![7; length];
    let mut json: Value = serde_json::from_str(EXAMPLE).unwrap();
    let hash: String = Sha256::digest(&module).iter().map(|b| format!("{b:02x}")).collect();
    json["kernels"][0]["hash"] = json!(format!("sha256:{hash}"));
    json["kernels"][0]["size"] = json!(length);
    json["kernels"][0]["platforms"].as_object_mut().unwrap().remove("native");
    json["kernels"][0].as_object_mut().unwrap().remove("threads");
    let manifest = json.to_string().into_bytes();
    let key = SecretKey::generate().unwrap();
    let envelope = sign_manifest(&manifest, &[&key]).unwrap().to_json().into_bytes();
    let files =
        [(MANIFEST_FILE, manifest), (SIGNATURE_FILE, envelope), ("rope/rope_f32.wasm", module)];
    let files = files.map(|(name, bytes)| (name.to_owned(), Cow::Owned(bytes)));
    let publisher = Publisher {
        name: "a".to_owned(),
        key: key.public_key(),
        packs: vec!["*".parse().unwrap()],
        native: false,
        threads: false,
        wasi_nn: false,
        not_before: None,
        not_after: None,
    };
    let pack = UnverifiedPack::from_files(files, &PackLimits::default()).unwrap();
    (pack, TrustPolicy::new(vec![publisher], 1).unwrap())
}

fn archive(pack: &UnverifiedPack) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack.write_archive(&mut bytes).unwrap();
    bytes
}

#[test]
fn directory_and_archive_give_the_same_verified_pack_and_the_same_bytes() {
    let limits = PackLimits::default();
    for length in [1, 511, 512, 513, 200_000] {
        let (pack, policy) = pack(length);
        let dir = tempfile::tempdir().unwrap();
        let (folder, file) = (dir.path().join("pack"), dir.path().join("pack.rkp"));
        pack.write_dir(&folder).unwrap();
        let bytes = archive(&pack);
        std::fs::write(&file, &bytes).unwrap();
        let from_folder = UnverifiedPack::read(&folder, &limits).unwrap();
        assert_eq!(archive(&from_folder), bytes);
        let a = from_folder.verify(&policy, None).unwrap();
        let b = UnverifiedPack::read(&file, &limits).unwrap().verify(&policy, None).unwrap();
        assert_eq!(a.digest(), b.digest());
        assert_eq!(a.manifest(), b.manifest());
        assert_eq!(a.publishers(), b.publishers());
        assert!(a.kernels().eq(b.kernels()));
    }
}

#[test]
fn a_stock_tar_reads_an_archive_and_writes_the_same_bytes() {
    let (pack, _) = pack(1000);
    let dir = tempfile::tempdir().unwrap();
    pack.write_dir(&dir.path().join("pack")).unwrap();
    let script = "tar --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 \
                  --mode=0644 -b1 -C pack -cf pack.rkp kernels.json kernels.json.sig \
                  rope/rope_f32.wasm && tar -tf pack.rkp";
    let tar = Command::new("sh").args(["-c", script]).current_dir(dir.path()).output();
    let gnu = Command::new("tar").arg("--version").output();
    if !gnu.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("GNU tar")) {
        eprintln!("skipped: no GNU tar");
        return;
    }
    let tar = tar.unwrap();
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    let listed = String::from_utf8_lossy(&tar.stdout).into_owned();
    assert_eq!(listed, "kernels.json\nkernels.json.sig\nrope/rope_f32.wasm\n");
    assert_eq!(std::fs::read(dir.path().join("pack.rkp")).unwrap(), archive(&pack));
}

#[test]
fn a_pack_crate_stands_for_its_build_and_what_is_no_pack_is_named_in_one_line() {
    let limits = PackLimits::default();
    let (pack, _) = pack(10);
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("my-kernels");
    let refused = |what: &str| {
        let error = UnverifiedPack::read(&named, &limits).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.code(), "pack_rejected");
        assert!(text.contains("my-kernels is ") && text.contains(what), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    std::fs::create_dir(&named).unwrap();
    std::fs::write(named.join("A bad name!"), b"x").unwrap();
    refused("no kernels.json in it");
    std::fs::write(named.join("pack.toml"), b"").unwrap();
    refused("has not been built: run `ruvllm-pack build`");
    pack.write_dir(&named.join("dist")).unwrap();
    let read = UnverifiedPack::read(&named, &limits).unwrap();
    assert_eq!(archive(&read), archive(&pack));
}

#[test]
fn a_file_of_another_kind_is_no_archive_and_a_damaged_archive_is_one() {
    let (pack, _) = pack(10);
    let good = archive(&pack);
    let read = |bytes: &[u8]| {
        UnverifiedPack::read_archive(bytes, &PackLimits::default()).unwrap_err().code()
    };
    let text = "A text that somebody has called pack.rkp. ".repeat(40);
    for foreign in [&text.as_bytes()[..40], text.as_bytes(), b"\0asm\x01\0\0\0", &[0x1f; 2000]] {
        let expected = if foreign.len() < 300 && foreign.contains(&0) {
            // Too short to tell.
            "pack_rejected"
        } else {
            "pack_rejected"
        };
        assert_eq!(read(foreign), expected, "{} bytes", foreign.len());
    }
    let mut damaged = good.clone();
    damaged[120] ^= 1;
    for archive in [&b""[..], &good[..200], &good[..good.len() - 1], &damaged] {
        assert_eq!(read(archive), "pack_rejected", "{} bytes", archive.len());
    }
}

#[test]
fn an_archive_is_bounded_as_a_directory_is() {
    let (pack, _) = pack(10_000);
    let bytes = archive(&pack);
    let read = |limits: PackLimits| {
        let result = UnverifiedPack::read_archive(bytes.as_slice(), &limits);
        result.unwrap_err().violations().iter().map(|v| v.code).collect::<Vec<_>>()
    };
    let limits = PackLimits::default();
    assert_eq!(read(PackLimits { max_entries: 2, ..limits }), ["pack_too_many_files"]);
    assert_eq!(read(PackLimits { max_file_bytes: 9_999, ..limits }), ["file_too_large"]);
    assert_eq!(read(PackLimits { max_total_bytes: 10_000, ..limits }), ["pack_too_large"]);
}

#[test]
fn an_archive_that_cannot_be_written_out_leaves_nothing() {
    let (pack, _) = pack(10);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("there");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("mine"), b"x").unwrap();
    assert_eq!(pack.write_dir(&target).unwrap_err().code(), "io");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
}
