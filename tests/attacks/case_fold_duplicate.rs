//! Two names that a file system without case would fold into one.

use crate::{KERNEL, good_kernel, good_pack};
use ruvllm_tests::{PackBuilder, codes};
use serde_json::json;

#[cfg(target_os = "linux")]
#[test]
fn two_files_that_differ_by_case_alone_are_refused() {
    let pack = good_pack();
    pack.write("TEST/RMSNORM_F32.WASM", b"other bytes");
    assert_eq!(codes(&pack.verify().unwrap_err()), ["path_case_duplicate"]);
    let pack = good_pack();
    pack.write("Kernels.json", b"{}");
    assert_eq!(codes(&pack.verify().unwrap_err()), ["path_case_duplicate"]);
}

#[test]
fn two_manifest_paths_or_ids_that_differ_by_case_alone_are_refused() {
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", good_kernel())
        .kernel("rmsnorm_f16", good_kernel())
        .build();
    pack.sign_edited(|m| m["kernels"][1]["path"] = json!(KERNEL.to_uppercase()));
    assert_eq!(codes(&pack.verify().unwrap_err()), ["path_duplicate"]);
    pack.sign_edited(|m| {
        m["kernels"][1]["path"] = json!("test/other.wasm");
        m["kernels"][1]["id"] = json!("RMSNORM_F32");
    });
    assert_eq!(codes(&pack.verify().unwrap_err())[0], "kernel_id_duplicate");
}
