//! Kernels of this machine.

use super::{graphs, tables};
use crate::cli::args::KernelOptions;
use crate::cli::{Failure, setup};
use ruvllm::host::Host;

pub(crate) fn list(options: &KernelOptions, json: bool) -> Result<(), Failure> {
    let kernels = host(options)?.kernels();
    if json {
        return tables::json(&kernels);
    }
    tables::kernels(&kernels);
    Ok(())
}

pub(crate) fn explain(options: &KernelOptions, op: &str, json: bool) -> Result<(), Failure> {
    let host = host(options)?;
    let explanations = host.explain_named(Some(op));
    if explanations.is_empty() {
        let graphs = graphs::of_packs(options)?;
        if let Some(graph) = graphs.iter().find(|graph| graph.entry().id == op) {
            return graphs::explain(graph, json);
        }
        let mut names: Vec<String> = host.kernels().into_iter().map(|k| k.op.op).collect();
        names.extend(graphs.iter().map(|graph| graph.entry().id.clone()));
        names.sort();
        names.dedup();
        return Err(format!("no kernel does `{op}`; there are: {}", names.join(", ")).into());
    }
    if json {
        return tables::json(&explanations);
    }
    tables::explanations(&explanations);
    Ok(())
}

fn host(options: &KernelOptions) -> Result<Host, Failure> {
    let set = setup::kernel_set(options)?.build()?;
    setup::warn_of_kernels(&set);
    Ok(set.host().clone())
}
