//! Somebody spoils the record of the newest version, so that an old one comes through.

use crate::{good_pack, good_version, tree};
use ruvllm_signing::VersionFloor;

#[test]
fn a_damaged_floor_refuses_every_version_and_is_not_repaired_behind_ones_back() {
    let pack = good_pack();
    let newer = good_version(&pack, "2.0.0");
    let directory = pack.outside().join("floors");
    let floors = VersionFloor::open(&directory).unwrap();
    floors.raise(&newer.verify().unwrap()).unwrap();
    let file = directory.join("test-kernels.floor");
    let good = std::fs::read(&file).unwrap();
    let other = String::from_utf8(good.clone()).unwrap().replace("test-kernels", "other");
    let lower = br#"{"format":3,"pack":"test-kernels","floor":"0.0.1"}"#;
    let unknown = br#"{"format":1,"pack":"test-kernels","floor":"0.0.1","x":1}"#;
    let spoilt: [&[u8]; 7] =
        [b"", b"{}", &good[..good.len() / 2], other.as_bytes(), lower, unknown, &[b' '; 99_999]];
    for bytes in spoilt {
        std::fs::write(&file, bytes).unwrap();
        let before = tree(pack.outside());
        for pack in [&pack, &newer] {
            let result = pack.read().unwrap().verify(&pack.policy(), Some(&floors));
            assert_eq!(result.unwrap_err().code(), "floor_damaged");
        }
        assert_eq!(floors.raise(&newer.verify().unwrap()).unwrap_err().code(), "floor_damaged");
        assert_eq!(tree(pack.outside()), before, "the evidence was changed");
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let result = pack.read().unwrap().verify(&pack.policy(), Some(&floors));
    assert_eq!(result.unwrap_err().code(), "floor_damaged");
}
