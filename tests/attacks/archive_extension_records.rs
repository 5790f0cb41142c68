//! Records that change what the next entry means: pax and GNU extensions, sparse files, bombs of
//! them.

use crate::{good_pack, tar};

#[test]
fn every_extension_record_is_refused_unread() {
    let pack = good_pack();
    let record = b"30 path=../../etc/cron.d/x\n\0\0\0\0";
    for kind in [b'x', b'g', b'L', b'K', b'S', b'D', b'M', b'N', b'V', b'X'] {
        let bytes = tar::with(&pack, &tar::entry("z", kind, record));
        let found = tar::refused(&pack, &bytes);
        assert_eq!(found, ["archive_entry_kind"], "{}", char::from(kind));
    }
}

#[test]
fn a_bomb_of_records_ends_at_the_first() {
    let pack = good_pack();
    let mut bomb = tar::header(b"z", "77777777777\0", b'x').to_vec();
    bomb.extend(vec![b'9'; 1 << 20]);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &bomb)), ["archive_entry_kind"]);
    let many = tar::entry("z", b'g', b"9 a=bcde\n").repeat(10_000);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &many)), ["archive_entry_kind"]);
}
