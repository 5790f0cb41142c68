//! Features of WebAssembly by the names that manifests use, with what the parser calls them.

use crate::DeviceClass;
use ruvllm_manifest::WASI_NN;
use wasmparser::WasmFeatures;

/// The feature of vectors.
pub(crate) const SIMD: &str = "simd";

/// The feature whose instructions may give different results on different processors.
pub(crate) const RELAXED_SIMD: &str = "relaxed-simd";

/// The feature of copying and filling memory.
pub(crate) const BULK_MEMORY: &str = "bulk-memory";

/// The feature of atomics and shared memory, which only a kernel that asks for threads may use.
pub(crate) const THREADS: &str = "threads";

/// Features that a manifest declares by name.
pub(crate) const FEATURES: [(&str, WasmFeatures); 6] = [
    (THREADS, WasmFeatures::THREADS),
    (SIMD, WasmFeatures::SIMD),
    (RELAXED_SIMD, WasmFeatures::RELAXED_SIMD),
    (BULK_MEMORY, WasmFeatures::BULK_MEMORY),
    ("reference-types", WasmFeatures::REFERENCE_TYPES),
    ("extended-const", WasmFeatures::EXTENDED_CONST),
];

/// Features that every module may use without saying so.
pub(crate) const BASELINE: [(&str, WasmFeatures); 4] = [
    ("mutable-globals", WasmFeatures::MUTABLE_GLOBAL),
    ("sign-ext", WasmFeatures::SIGN_EXTENSION),
    ("nontrapping-fptoint", WasmFeatures::SATURATING_FLOAT_TO_INT),
    ("multi-value", WasmFeatures::MULTI_VALUE),
];

/// The names of the given features and of those that every module may use.
pub(crate) fn names<'a>(
    features: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = &'a str> {
    features.into_iter().chain(BASELINE.iter().map(|(name, _)| *name))
}

/// Names of all features that a manifest may declare to a host of that class.
pub fn kernel_features(class: DeviceClass) -> impl Iterator<Item = &'static str> {
    let graphs = cfg!(feature = "wasi-nn").then_some(WASI_NN);
    let all = names(FEATURES.iter().map(|(name, _)| *name)).chain(graphs);
    all.filter(move |name| *name != THREADS || class.kernel_threads() > 1)
}

/// Names of the features that kernels have on any WAMR: copying and filling are rewritten, whatever the library has.
pub(crate) fn wamr_features() -> impl Iterator<Item = &'static str> {
    names([BULK_MEMORY])
}
