//! The kernel traps.

use super::{begins_with, later_begins_with, outlived, outlived_once, pack, refused};

#[test]
fn a_kernel_that_always_traps_is_refused() {
    assert_eq!(refused(&pack(&begins_with("(unreachable)"))), ["kernel_trap"]);
}

#[test]
fn a_kernel_that_traps_later_is_answered_by_the_twin() {
    assert_eq!(outlived_once(&later_begins_with("(unreachable)")), "kernel_trap");
}

#[test]
fn a_kernel_that_traps_again_and_again_is_taken_out_of_service() {
    let incidents = outlived(&pack(&later_begins_with("(unreachable)")), 10);
    let quarantined: Vec<bool> = incidents.iter().map(|incident| incident.quarantined).collect();
    assert_eq!(quarantined, [false, false, true]);
}
