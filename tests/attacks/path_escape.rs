//! A signed manifest lists a file outside of the pack.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;
use serde_json::json;

#[test]
fn a_path_that_leaves_the_pack_is_refused() {
    let pack = good_pack();
    let module = pack.bytes(KERNEL);
    std::fs::write(pack.outside().join("outside.wasm"), module).unwrap();
    let absolute = pack.outside().join("outside.wasm").display().to_string();
    for path in [
        "../outside.wasm",
        "test/../../outside.wasm",
        "..",
        "..\\outside.wasm",
        "C:\\outside.wasm",
        "\\\\host\\share\\outside.wasm",
        &absolute,
    ] {
        pack.sign_edited(|m| m["kernels"][0]["path"] = json!(path));
        assert_eq!(codes(&pack.verify().unwrap_err()), ["path_escapes"], "{path}");
    }
}

#[test]
fn paths_that_systems_read_differently_are_refused() {
    let pack = good_pack();
    for path in ["./test/x", "test//x", "test/x:stream", "test/nul", "test/x.", "test/x\u{0}y"] {
        pack.sign_edited(|m| m["kernels"][0]["path"] = json!(path));
        assert_eq!(codes(&pack.verify().unwrap_err()), ["path_invalid"], "{path}");
    }
}

#[cfg(unix)]
#[test]
fn a_file_name_that_another_system_takes_for_a_way_out_is_refused() {
    let pack = good_pack();
    pack.write("..\\up.wasm", b"");
    assert_eq!(codes(&pack.verify().unwrap_err()), ["path_escapes"]);
}
