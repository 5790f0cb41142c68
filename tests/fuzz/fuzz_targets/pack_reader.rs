//! Archives: any bytes are refused or read; each pack has one spelling; nothing that nobody signed
//! is verified.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};

fuzz_target!(|bytes: &[u8]| {
    let limits =
        PackLimits { max_entries: 64, max_file_bytes: 64 << 10, max_total_bytes: 256 << 10 };
    let Ok(pack) = UnverifiedPack::read_archive(bytes, &limits) else { return };
    assert!(pack.files().map(|(_, file)| file.len() as u64).sum::<u64>() <= limits.max_total_bytes);
    let mut again = Vec::new();
    pack.write_archive(&mut again).expect("what was read can be written");
    assert_eq!(again, bytes);
    // The built-in publisher's key is not among the fuzzer's.
    assert!(pack.verify(&TrustPolicy::builtin(), None).is_err());
});
