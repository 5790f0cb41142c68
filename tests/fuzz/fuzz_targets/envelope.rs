//! `kernels.json.sig`: any bytes are refused or understood; what is understood reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_signing::Envelope;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(envelope) = Envelope::parse(bytes) {
        let again = Envelope::parse(envelope.to_json().as_bytes());
        assert_eq!(again.ok(), Some(envelope));
    }
});
