//! `ruvllm kernels`: what this host admitted and why it chooses what it chooses.

use super::args::{KernelsAction, KernelsArgs};
use super::{Ended, Failure, setup};

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
            let explanations = host.explain_named(Some(op));
            if explanations.is_empty() {
                let all = host.explain_named(None).into_iter();
                let mut names: Vec<String> = all.map(|explanation| explanation.op.op).collect();
                names.dedup();
                return Err(
                    format!("no kernel does `{op}`; there are: {}", names.join(", ")).into()
                );
            }
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
