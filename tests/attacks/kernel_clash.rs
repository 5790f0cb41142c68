//! Two kernels of a pack claim one id or one file.

use crate::{KERNEL, good_kernel, refused};
use ruvllm_tests::PackBuilder;
use serde_json::json;

#[test]
fn two_kernels_of_one_id_or_one_file_are_refused() {
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", good_kernel())
        .kernel("rmsnorm_f16", good_kernel())
        .build();
    pack.sign_edited(|m| m["kernels"][1]["id"] = json!("rmsnorm_f32"));
    assert_eq!(refused(&pack), ["kernel_id_duplicate"]);
    pack.sign_edited(|m| {
        m["kernels"][1]["id"] = json!("rmsnorm_f16");
        m["kernels"][1]["path"] = json!(KERNEL);
    });
    assert_eq!(refused(&pack)[0], "path_duplicate");
    // A file within a file.
    pack.sign_edited(|m| m["kernels"][1]["path"] = json!(format!("{KERNEL}/inner.wasm")));
    assert_eq!(refused(&pack)[0], "path_duplicate");
    // The place of the manifest itself.
    pack.sign_edited(|m| m["kernels"][1]["path"] = json!("KERNELS.JSON"));
    assert_eq!(refused(&pack)[0], "path_reserved");
}

#[test]
fn an_entry_point_that_the_abi_uses_itself_is_refused() {
    let pack = crate::good_pack();
    for name in ["memory", "__heap_base", "kernel_init", "kernel_info", "kernel_cleanup"] {
        pack.sign_edited(|m| m["kernels"][0]["entry_point"] = json!(name));
        assert_eq!(refused(&pack), ["entry_point_reserved"], "{name}");
    }
}
