//! An archive is cut short.

use crate::{good_pack, tar};

#[test]
fn an_archive_that_is_cut_anywhere_is_refused() {
    let pack = good_pack();
    let good = tar::archive(&pack);
    for length in (0..good.len()).step_by(97).chain([512, good.len() - 1024, good.len() - 1]) {
        let found = tar::refused(&pack, &good[..length]);
        assert_eq!(found, ["archive_truncated"], "{length} of {} bytes", good.len());
    }
}
