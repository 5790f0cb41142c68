//! Admission of what was admitted before: machine code from the cache.
//!
//! An entry stands for everything that admission depends on, so that one that is there means the same
//! kernel, the same engine and processor, and the same demands. It is looked up after the gates, which
//! a module passes anew whatever the cache holds.

use super::admission::Admission;
use crate::HostLimits;
use crate::exec::cache::{CachedCode, EntryId, EntryIdBuilder};
use crate::exec::{Executor, KernelSpec};
use crate::gate::GatedKernel;
use crate::instance::InstanceTemplate;
use std::sync::Arc;

/// Raised whenever the gates or admission ask something else of a kernel, so that what was admitted
/// before shows itself again.
const REVISION: u32 = 7;

/// What the instances of a kernel are made of, where the cache can vouch for it, and whether its numbers
/// were held against an oracle.
pub(super) fn recall(
    gated: &GatedKernel<'_>,
    executor: &dyn Executor,
    admission: &Admission<'_>,
) -> Option<(Arc<InstanceTemplate>, bool)> {
    let cache = admission.cache?;
    let id = entry_id(gated, executor, admission);
    let CachedCode { artifact, verified, own_pages } = cache.get(&id)?;
    let (spec, deadline) = (admission.spec(gated), admission.deadline(gated, executor));
    match executor.load(&artifact, gated.module(), spec, deadline) {
        Ok(module) => Some((admission.template(gated, module, own_pages), verified)),
        Err(_) => {
            cache.forget(&id);
            None
        }
    }
}

/// Keeps what was admitted for the next host.
pub(super) fn keep(
    gated: &GatedKernel<'_>,
    executor: &dyn Executor,
    admission: &Admission<'_>,
    entry: CachedCode,
) {
    if let Some(cache) = admission.cache {
        // A cache that cannot be written costs the next start its time, and nothing else.
        let _ = cache.put(&entry_id(gated, executor, admission), &entry);
    }
}

/// What an entry must agree with. Every field stands for itself, in an encoding of its own: two programs
/// of one version agree on it.
fn entry_id(
    gated: &GatedKernel<'_>,
    executor: &dyn Executor,
    admission: &Admission<'_>,
) -> EntryId {
    let KernelSpec { entry_point, backward, threads, memory_pages, table_elements, ticks, graphs } =
        admission.spec(gated);
    let HostLimits {
        module_bytes,
        functions,
        function_bytes,
        locals,
        nesting,
        items,
        data_bytes,
        table_elements: host_table_elements,
        memory_pages: host_memory_pages,
        epoch_ticks,
    } = admission.config.limits;
    let mut id = EntryIdBuilder::new()
        .field(env!("CARGO_PKG_VERSION"))
        .number(REVISION)
        .field(executor.fingerprint())
        .field(gated.module())
        .field(gated.key().to_string())
        .field(gated.plan().signature())
        .field(entry_point)
        .number(backward)
        .number(threads)
        .number(memory_pages)
        .number(table_elements)
        .number(ticks)
        .number(gated.features().len() as u64);
    for feature in gated.features() {
        id = id.field(feature);
    }
    id = match gated.author() {
        None => id.number(0u32),
        Some(author) => id.number(1u32).number(author.rel.to_bits()).number(author.abs.to_bits()),
    };
    for bytes in [module_bytes, function_bytes, data_bytes] {
        id = id.number(bytes as u64);
    }
    for count in [functions, locals, nesting, items, host_table_elements, host_memory_pages] {
        id = id.number(count);
    }
    id = id.number(epoch_ticks);
    // What it computes depends on them.
    match graphs.digest() {
        None => id.finish(),
        Some(pack) => id.field(pack).finish(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_is_made_of_no_text_that_is_for_people() {
        let source = include_str!("recall.rs").split("#[cfg(test)]").next().unwrap();
        let (_, made) = source.split_once("fn entry_id(").unwrap();
        for unstable in ["format", "Debug", ":?}", "write!", "dbg!"] {
            assert!(
                !made.contains(unstable),
                "{unstable}: what it gives may change with the compiler or a name"
            );
        }
        // The texts of operations are those that manifests have, and a test of their own states them.
        assert_eq!(made.matches("to_string()").count(), 1);
        assert!(made.contains(".field(gated.key().to_string())"));
    }
}
