//! An old version, authentic and with a known hole, is offered again.

use crate::{good_pack, good_version, tree};
use ruvllm_signing::VersionFloor;
use ruvllm_tests::codes;

#[test]
fn a_version_older_than_one_that_was_active_is_refused() {
    let pack = good_pack();
    let newer = good_version(&pack, "1.1.0");
    let floors = VersionFloor::open(pack.outside().join("floors")).unwrap();
    // To verify is not to activate: nothing rises by looking.
    newer.read().unwrap().verify(&newer.policy(), Some(&floors)).unwrap();
    pack.read().unwrap().verify(&pack.policy(), Some(&floors)).unwrap();
    floors.raise(&newer.verify().unwrap()).unwrap();
    let before = tree(pack.outside());
    for old in [&pack, &good_version(&pack, "1.1.0-rc.1"), &good_version(&pack, "0.9.9")] {
        let error = old.read().unwrap().verify(&old.policy(), Some(&floors)).unwrap_err();
        assert_eq!(codes(&error), ["version_below_floor"]);
    }
    assert_eq!(tree(pack.outside()), before, "the floor moved");
    newer.read().unwrap().verify(&newer.policy(), Some(&floors)).unwrap();
}
