//! Files are named from the root of the file system, in the manifest and in an archive.

use crate::{KERNEL, good_pack, refused, tar};
use serde_json::json;

#[test]
fn an_absolute_path_is_refused_also_where_it_names_the_right_file() {
    let pack = good_pack();
    let inside = pack.path().join(KERNEL).display().to_string();
    for path in [inside.as_str(), "/etc/passwd", "/", "\\windows\\x", "C:\\x", "c:x", "\\\\h\\s\\x"]
    {
        pack.sign_edited(|m| m["kernels"][0]["path"] = json!(path));
        assert_eq!(refused(&pack), ["path_escapes"], "{path}");
    }
}

#[test]
fn an_absolute_path_in_an_archive_is_refused() {
    let pack = good_pack();
    for path in ["/etc/passwd", "C:\\x", "\\x"] {
        let bytes = tar::with(&pack, &tar::entry(path, b'0', b"x"));
        assert_eq!(tar::refused(&pack, &bytes), ["path_escapes"], "{path}");
    }
}
