//! `kernels.json`: any bytes are refused or understood; what is understood reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_manifest::Manifest;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = Manifest::parse(bytes) {
        let text = manifest.to_json().expect("what was read can be written");
        assert_eq!(Manifest::parse(text.as_bytes()).as_ref().ok(), Some(&manifest));
    }
});
