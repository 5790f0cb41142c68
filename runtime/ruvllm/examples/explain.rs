//! Says which kernel answers each operation, and why the other candidates do not.
//!
//! ```console
//! cargo run --release --example explain
//! ```

use ruvllm::KernelSet;
use ruvllm::host::{HostConfig, OpKey, Policy};
use std::collections::BTreeMap;

fn main() -> Result<(), ruvllm::Error> {
    // RMSNorm is pinned to its native twin; everything else stays in the sandbox.
    let pins = BTreeMap::from([("rmsnorm".to_owned(), "native:rmsnorm_f32".to_owned())]);
    let config = HostConfig { policy: Policy::Pinned(pins), ..HostConfig::default() };
    let kernels = KernelSet::builder().config(config).build()?;

    for key in [OpKey::rmsnorm_f32(), OpKey::swiglu_f32()] {
        let explanation = kernels.host().explain(&key);
        println!("{}: {:?}", explanation.op, explanation.selected);
        for candidate in &explanation.candidates {
            println!(
                "  {:<10} {} of {} {}: {}",
                candidate.verdict,
                candidate.kernel,
                candidate.pack,
                candidate.pack_version,
                candidate.reasons.join("; ")
            );
        }
    }
    Ok(())
}
