//! A rollback is asked for to a version that never ran here, or by nobody, or for no reason.

use crate::{good_pack, good_version, tree};
use ruvllm_signing::VersionFloor;

#[test]
fn a_floor_comes_down_only_to_what_was_active_here_and_only_with_a_line_in_the_log() {
    let pack = good_pack();
    let floors = VersionFloor::open(pack.outside().join("floors")).unwrap();
    let name = "test-kernels".parse().unwrap();
    for version in ["1.1.0", "1.2.0"] {
        floors.raise(&good_version(&pack, version).verify().unwrap()).unwrap();
    }
    let before = tree(pack.outside());
    for (to, operator, reason) in [
        ("1.0.0", "ann", "older than anything that ran"),
        ("1.1.5", "ann", "never ran"),
        ("1.2.0", "ann", "no rollback"),
        ("2.0.0", "ann", "forward"),
        ("1.1.0", "", "nobody"),
        ("1.1.0", "ann", ""),
        ("1.1.0", "ann\n", "a second line in the log"),
        ("1.1.0", "ann", "\u{1b}[2J"),
    ] {
        let result = floors.roll_back(&name, &to.parse().unwrap(), operator, reason);
        assert_eq!(result.unwrap_err().code(), "rollback_refused", "{to} {operator} {reason}");
    }
    assert_eq!(tree(pack.outside()), before, "something moved");
    floors.roll_back(&name, &"1.1.0".parse().unwrap(), "ann", "1.2.0 is slow").unwrap();
    assert_eq!(floors.rollbacks().unwrap().len(), 1);
}
