//! Rules that span fields or kernels, and the caps of the format.

use crate::graph::GraphEntry;
use crate::reader::Report;
use crate::types::{Dim, KernelEntry, NativeLibrary};
use crate::{MANIFEST_FILE, PackPath, SIGNATURE_FILE, contract};
use indexmap::IndexMap;
use ruvllm_abi::export;
use semver::Version;
use std::collections::HashSet;

/// The longest manifest that is read, in bytes.
pub const MAX_MANIFEST_BYTES: usize = limit::MANIFEST_BYTES;
/// The most kernels of a pack.
pub const MAX_KERNELS: usize = limit::KERNELS;
/// The longest file of a kernel, in bytes. A host may allow less.
pub const MAX_FILE_BYTES: u64 = limit::FILE_BYTES;
/// The longest file of a graph, in bytes.
pub const MAX_GRAPH_FILE_BYTES: u64 = limit::GRAPH_FILE_BYTES;

/// Caps that keep a manifest small enough to read and to reason about.
pub(crate) mod limit {
    pub(crate) const MANIFEST_BYTES: usize = 1 << 20;
    pub(crate) const KERNELS: usize = 256;
    pub(crate) const FILE_BYTES: u64 = 16 << 20;
    pub(crate) const MEMBERS: usize = 1024;
    pub(crate) const TEXT: usize = 256;
    pub(crate) const DESCRIPTION: usize = 4096;
    pub(crate) const NAME: usize = 64;
    pub(crate) const RANK: usize = 8;
    pub(crate) const FEATURES: usize = 32;
    pub(crate) const TARGETS: usize = 16;
    /// All of a 32-bit address space.
    pub(crate) const MEMORY_PAGES: u32 = 65_536;
    pub(crate) const EPOCH_TICKS: u64 = 1_000_000;
    pub(crate) const TABLE_ELEMENTS: u32 = 1 << 20;
    pub(crate) const GRAPHS: usize = 16;
    pub(crate) const GRAPH_FILE_BYTES: u64 = 512 << 20;
    pub(crate) const GRAPH_TENSORS: usize = 32;
    pub(crate) const GRAPH_CHECKS: usize = 16;
    /// Numbers of one tensor of a check.
    pub(crate) const GRAPH_VALUES: usize = 1 << 16;
    /// Elements of an input or output at the largest extents.
    pub(crate) const GRAPH_ELEMENTS: u64 = 1 << 26;
    pub(crate) const GRAPH_MEMORY: u64 = 16 << 30;
    pub(crate) const GRAPH_MILLIS: u64 = 600_000;
}

/// Exports that have another meaning than entry point.
const RESERVED_EXPORTS: [&str; 7] = [
    export::MEMORY,
    export::HEAP_BASE,
    export::INIT,
    export::BACKWARD,
    export::INFO,
    export::CLEANUP,
    export::STACK_POINTER,
];

/// Checks each kernel that decoded and what must be unique among them and the graphs. The contract of an
/// op is that of this crate's ABI; a manifest for another is left to the compatibility gate.
pub(crate) fn kernels(
    r: &mut Report,
    kernels: &[Option<KernelEntry>],
    graphs: &[Option<GraphEntry>],
    abi_version: Option<u32>,
) {
    let mut ids = HashSet::new();
    let mut paths: Vec<String> = Vec::new();
    for (i, kernel) in kernels.iter().enumerate() {
        let Some(kernel) = kernel else { continue };
        let at = format!("kernels[{i}]");
        if !ids.insert(kernel.id.to_ascii_lowercase()) {
            let what = format!("`{}` is taken (case is ignored); choose another id", kernel.id);
            r.add("kernel_id_duplicate", format!("{at}.id"), what);
        }
        file_path(r, &format!("{at}.path"), &kernel.path, &paths);
        paths.push(kernel.path.folded());
        if RESERVED_EXPORTS.contains(&kernel.entry_point.as_str()) {
            let what = format!("the ABI uses `{}` itself; rename the export", kernel.entry_point);
            r.add("entry_point_reserved", format!("{at}.entry_point"), what);
        }
        tensors(r, &at, kernel);
        params(r, &at, kernel);
        if abi_version == Some(ruvllm_abi::ABI_VERSION) {
            r.extend(contract::check_contract(kernel, &at));
        }
    }
    for (i, graph) in graphs.iter().enumerate() {
        let Some(graph) = graph else { continue };
        let at = format!("graphs[{i}]");
        if !ids.insert(graph.id.to_ascii_lowercase()) {
            let what = format!("`{}` is taken (case is ignored); choose another id", graph.id);
            r.add("graph_id_duplicate", format!("{at}.id"), what);
        }
        let places = [".path", ".embedding.tokenizer.path"];
        for ((path, ..), place) in graph.files().zip(places) {
            file_path(r, &format!("{at}{place}"), path, &paths);
            paths.push(path.folded());
        }
    }
    libraries(r, kernels, paths);
}

/// Checks that each native library has a path of its own among all files. Several kernels and
/// targets may share one library, if they agree on what it is.
fn libraries(r: &mut Report, kernels: &[Option<KernelEntry>], mut paths: Vec<String>) {
    let mut seen: Vec<&NativeLibrary> = Vec::new();
    for (i, kernel) in kernels.iter().enumerate() {
        let native = kernel.as_ref().and_then(|kernel| kernel.platforms.native.as_ref());
        for (target, library) in native.iter().flat_map(|native| &native.targets) {
            if seen.contains(&library) {
                continue;
            }
            let at = format!("kernels[{i}].platforms.native.targets.{target}.path");
            file_path(r, &at, &library.path, &paths);
            paths.push(library.path.folded());
            seen.push(library);
        }
    }
}

/// Checks that a path is not one of the pack's own files, nor equal to, in or above a path that is
/// taken; case is ignored.
fn file_path(r: &mut Report, at: &str, path: &PackPath, taken: &[String]) {
    let folded = path.folded();
    let nested = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if taken.iter().any(|other| nested(other, &folded) || nested(&folded, other)) {
        let what = format!("`{path}` is taken (case is ignored); choose another path");
        r.add("path_duplicate", at, what);
    }
    if [MANIFEST_FILE, SIGNATURE_FILE].iter().any(|reserved| nested(reserved, &folded)) {
        let what = "the name belongs to the pack itself; choose another path";
        r.add("path_reserved", at, what);
    }
}

fn tensors(r: &mut Report, at: &str, kernel: &KernelEntry) {
    let mut names = HashSet::new();
    let inputs = kernel.inputs.iter().enumerate().map(|(i, t)| (format!("{at}.inputs[{i}]"), t));
    let outputs = kernel.outputs.iter().enumerate().map(|(i, t)| (format!("{at}.outputs[{i}]"), t));
    for (at, tensor) in inputs.chain(outputs) {
        if !names.insert(&tensor.name) {
            let what = format!("`{}` names another tensor of the kernel; rename it", tensor.name);
            r.add("tensor_name_duplicate", format!("{at}.name"), what);
        }
        let block = tensor.dtype.layout().elems;
        if let Some(Dim::Fixed(n)) = tensor.shape.last()
            && !(*n as usize).is_multiple_of(block)
        {
            let what = format!("rows of {} hold whole blocks of {block} elements", tensor.dtype);
            r.add("shape_block", format!("{at}.shape"), what);
        }
    }
}

fn params(r: &mut Report, at: &str, kernel: &KernelEntry) {
    let symbols = kernel.symbols();
    for name in kernel.params.keys().filter(|name| symbols.contains(&name.as_str())) {
        let what = "a shape symbol has this name and callers could not tell them apart; rename one";
        r.add("param_symbol_clash", format!("{at}.params.{name}"), what);
    }
    let words = symbols.len() + kernel.params.len();
    if words > ruvllm_abi::MAX_PARAM_WORDS {
        let what = format!(
            "{words} shape symbols and parameters; the params block has room for {}",
            ruvllm_abi::MAX_PARAM_WORDS
        );
        r.add("param_words", format!("{at}.params"), what);
    }
}

/// Checks that every fallback starts at a kernel of the pack and that the chain ends.
pub(crate) fn fallbacks(
    r: &mut Report,
    kernels: &[Option<KernelEntry>],
    fallbacks: &IndexMap<String, String>,
) {
    for kernel in fallbacks.keys() {
        let at = format!("fallbacks.{kernel}");
        if !kernels.iter().flatten().any(|k| &k.id == kernel) {
            let what = "no kernel of the pack has this id; correct it or remove the line";
            r.add("fallback_unknown_kernel", at, what);
            continue;
        }
        let mut next = fallbacks.get(kernel);
        // A chain longer than the map must have come by some name twice.
        for _ in 0..fallbacks.len() {
            match next {
                Some(name) if name == kernel => {
                    let what = "the chain of fallbacks comes back to the kernel; break the circle";
                    r.add("fallback_cycle", at, what);
                    break;
                }
                Some(name) => next = fallbacks.get(name),
                None => break,
            }
        }
    }
}

/// Checks that some runtime fits between the bounds.
pub(crate) fn runtime_range(r: &mut Report, min: &Version, max: &Version) {
    if min >= max {
        let what = format!("the bound is exclusive and must be above {min}");
        r.add("runtime_range", "max_runtime_version", what);
    }
}

/// Whether the text has the form `ed25519:<base64 of 32 bytes>`. That it is a key, and a strong
/// one, only the signing crate can say.
pub(crate) fn is_key_text(text: &str) -> bool {
    text.strip_prefix("ed25519:").and_then(|base64| base64.strip_suffix('=')).is_some_and(
        |digits| {
            digits.len() == 43
                && digits.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
        },
    )
}
