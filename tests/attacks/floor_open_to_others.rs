//! Another user moves the record of the newest version away, from a directory that others can write to.

use crate::good_pack;
use ruvllm_signing::VersionFloor;
use std::fs::{Permissions, create_dir, set_permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn floors_in_a_directory_that_others_can_write_to_or_move_are_not_used() {
    let pack = good_pack();
    let state = pack.outside().join("state");
    let floors = state.join("floors");
    create_dir(&state).unwrap();
    let open = || VersionFloor::open(&floors).map(drop).map_err(|error| error.code());
    assert_eq!(open(), Ok(()));
    for (directory, mode, expected) in [
        (&floors, 0o777, Err("floor_exposed")),
        (&floors, 0o720, Err("floor_exposed")),
        (&floors, 0o755, Ok(())),
        (&state, 0o777, Err("floor_exposed")),
        // Nobody moves another's files out of a directory such as /tmp.
        (&state, 0o1777, Ok(())),
        (&state, 0o755, Ok(())),
    ] {
        set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        assert_eq!(open(), expected, "{} {mode:o}", directory.display());
    }
}
