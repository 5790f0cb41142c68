//! A file lies in the pack that the manifest does not list.

use crate::good_pack;
use ruvllm_tests::codes;

#[test]
fn an_unlisted_file_is_refused_wherever_it_lies() {
    for extra in ["extra.wasm", "test/rmsnorm_f32.wasm.bak", "new/deep/x", "kernels.json.sig.old"] {
        let pack = good_pack();
        pack.write(extra, b"");
        let error = pack.verify().unwrap_err();
        assert_eq!(codes(&error), ["file_unlisted"], "{extra}");
        assert_eq!(error.violations()[0].location, extra);
    }
}

#[test]
fn an_unlisted_hidden_file_is_refused_by_its_name() {
    let pack = good_pack();
    pack.write(".cache/x", b"");
    assert_eq!(codes(&pack.verify().unwrap_err()), ["path_invalid"]);
}
