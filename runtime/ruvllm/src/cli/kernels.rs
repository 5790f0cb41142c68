//! `ruvllm kernels`: what this host admitted and why it chooses what it chooses.

use super::args::{KernelsAction, KernelsArgs};
use super::{Ended, Failure, setup};
use ruvllm::host::OpKey;

pub(crate) fn main(args: &KernelsArgs) -> Result<Ended, Failure> {
    match &args.action {
        KernelsAction::List { kernels, json } => {
            let set = setup::kernel_set(kernels)?.build()?;
            setup::warn_of_cache(set.installed());
            let all = set.host().kernels();
            if *json {
                println!("{}", serde_json::to_string_pretty(&all)?);
            } else {
                println!("{:<28} {:<24} {:<30} state", "op", "kernel", "pack");
                for kernel in &all {
                    let state = match (kernel.quarantined, kernel.selected) {
                        (true, _) => "quarantined",
                        (false, true) => "selected",
                        (false, false) => "fallback",
                    };
                    let pack = format!("{} {}", kernel.pack, kernel.pack_version);
                    println!("{:<28} {:<24} {pack:<30} {state}", kernel.op.to_string(), kernel.id);
                }
            }
        }
        KernelsAction::Explain { op, kernels, json } => {
            let set = setup::kernel_set(kernels)?.build()?;
            setup::warn_of_cache(set.installed());
            let host = set.host();
            let mut keys: Vec<OpKey> = host.kernels().into_iter().map(|kernel| kernel.op).collect();
            keys.sort();
            keys.dedup();
            let named: Vec<&OpKey> =
                keys.iter().filter(|key| key.op == *op || key.to_string() == *op).collect();
            if named.is_empty() {
                let mut names: Vec<&str> = keys.iter().map(|key| key.op.as_str()).collect();
                names.dedup();
                return Err(
                    format!("no kernel does `{op}`; there are: {}", names.join(", ")).into()
                );
            }
            let explanations: Vec<_> = named.into_iter().map(|key| host.explain(key)).collect();
            if *json {
                println!("{}", serde_json::to_string_pretty(&explanations)?);
            } else {
                for explanation in &explanations {
                    println!("{explanation}");
                }
            }
        }
    }
    Ok(Ended::Done)
}
