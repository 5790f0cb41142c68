//! From JSON to the types, collecting everything that is wrong on the way.

use crate::check::{self, limit};
use crate::json::Json;
use crate::reader::{
    Fields, NameRule, Report, array, boolean, each, integer, join, map_of, non_negative, number,
    parsed, text, wrong_type,
};
use crate::text::InvalidPath;
use crate::types::{
    Author, Benchmark, Dim, KernelEntry, Manifest, NativeLibrary, NativePlatform, ParamSpec,
    ParamType, ParamValue, Platforms, ResourceLimits, TensorSpec, Tolerance, WamrPlatform,
    WasmtimePlatform,
};
use crate::{ManifestError, PackPath, graph};
use indexmap::IndexMap;
use ruvllm_abi::DType;

pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
    if bytes.len() > limit::MANIFEST_BYTES {
        return Err(ManifestError::TooLarge { size: bytes.len(), max: limit::MANIFEST_BYTES });
    }
    let json: Json = serde_json::from_slice(bytes)
        .map_err(|e| ManifestError::Syntax { message: e.to_string() })?;
    let mut report = Report::default();
    let manifest = manifest(&mut report, &json);
    match manifest {
        Some(manifest) if report.is_empty() => Ok(manifest),
        _ => Err(ManifestError::Invalid(report.finish())),
    }
}

fn manifest(r: &mut Report, json: &Json) -> Option<Manifest> {
    let mut f = Fields::of(r, "", json)?;
    let schema = f.optional("$schema").map(|v| text(r, "$schema", v, 0..=limit::TEXT));
    let version = f.parsed(r, "version", "version_invalid");
    let name = f.parsed(r, "name", "pack_name_invalid");
    let description = f.text(r, "description", 0..=limit::DESCRIPTION);
    let abi_version = f.small(r, "abi_version", 1..=u32::MAX, "abi_version_invalid");
    let min_runtime_version = f.parsed(r, "min_runtime_version", "version_invalid");
    let max_runtime_version = f
        .optional("max_runtime_version")
        .map(|v| parsed(r, "max_runtime_version", v, "version_invalid"));
    let created_at = f.parsed(r, "created_at", "timestamp_invalid");
    let author = f.required(r, "author").and_then(|v| author(r, "author", v));
    let graphs = match f.optional("graphs") {
        None => Some(Vec::new()),
        Some(v) => array(r, "graphs", v, 1..=limit::GRAPHS, "graph_count").map(|items| {
            let one = |(i, item)| graph::decode::graph(r, &format!("graphs[{i}]"), item);
            items.iter().enumerate().map(one).collect::<Vec<_>>()
        }),
    };
    let kernels = f.required(r, "kernels").and_then(|v| {
        let least = graphs.as_ref().map_or(0, |graphs| usize::from(graphs.is_empty()));
        let items = array(r, "kernels", v, least..=limit::KERNELS, "kernel_count")?;
        let one = |(i, item)| kernel(r, &format!("kernels[{i}]"), item);
        Some(items.iter().enumerate().map(one).collect::<Vec<_>>())
    });
    let fallbacks = match f.optional("fallbacks") {
        None => Some(IndexMap::new()),
        Some(v) => map_of(r, "fallbacks", v, NameRule::Id, |r, at, v| {
            let value = text(r, at, v, 0..=limit::TEXT)?;
            let name = value.strip_prefix("native:").unwrap_or(value);
            NameRule::Id.check(r, at, name).then(|| value.to_owned())
        }),
    };
    f.finish(r);

    if let Some(kernels) = &kernels {
        check::kernels(r, kernels, graphs.as_deref().unwrap_or_default(), abi_version);
        if let (Some(fallbacks), true) = (&fallbacks, kernels.iter().all(Option::is_some)) {
            check::fallbacks(r, kernels, fallbacks);
        }
    }
    if let (Some(min), Some(Some(max))) = (&min_runtime_version, &max_runtime_version) {
        check::runtime_range(r, min, max);
    }
    Some(Manifest {
        schema: match schema {
            None => None,
            Some(text) => Some(text?.to_owned()),
        },
        version: version?,
        name: name?,
        description: description?,
        abi_version: abi_version?,
        min_runtime_version: min_runtime_version?,
        max_runtime_version: match max_runtime_version {
            None => None,
            Some(version) => Some(version?),
        },
        created_at: created_at?,
        author: author?,
        kernels: kernels?.into_iter().collect::<Option<Vec<_>>>()?,
        graphs: graphs?.into_iter().collect::<Option<Vec<_>>>()?,
        fallbacks: fallbacks?,
    })
}

fn author(r: &mut Report, at: &str, json: &Json) -> Option<Author> {
    let mut f = Fields::of(r, at, json)?;
    let name = f.text(r, "name", 1..=limit::TEXT);
    let email_at = f.at("email");
    let email = f.optional("email").map(|v| text(r, &email_at, v, 1..=limit::TEXT));
    let signing_key = f.text(r, "signing_key", 1..=limit::TEXT).filter(|key| {
        let ok = check::is_key_text(key);
        if !ok {
            let what = "write the public key as 'ed25519:' and the base64 of its 32 bytes";
            r.add("author_key_invalid", f.at("signing_key"), what);
        }
        ok
    });
    f.finish(r);
    Some(Author {
        name: name?,
        email: match email {
            None => None,
            Some(text) => Some(text?.to_owned()),
        },
        signing_key: signing_key?,
    })
}

fn kernel(r: &mut Report, at: &str, json: &Json) -> Option<KernelEntry> {
    let mut f = Fields::of(r, at, json)?;
    let id = f.name(r, "id", NameRule::Id);
    let name = f.text(r, "name", 1..=limit::TEXT);
    let op = f.name(r, "op", NameRule::Lower);
    let category = f.name(r, "category", NameRule::Lower);
    let path = f.required(r, "path").and_then(|v| path(r, &join(at, "path"), v));
    let size = f.integer(r, "size", 1..=limit::FILE_BYTES, "size_out_of_range");
    let hash = f.parsed(r, "hash", "hash_invalid");
    let entry_point = f.name(r, "entry_point", NameRule::Export);
    let backward = match f.optional("backward") {
        None => Some(false),
        Some(v) => boolean(r, &f.at("backward"), v),
    };
    let threads = match f.optional("threads") {
        None => Some(1),
        Some(v) => {
            let range = 1..=u64::from(ruvllm_abi::MAX_THREADS);
            integer(r, &f.at("threads"), v, range, "threads_out_of_range")
        }
    };
    let tensors = |r: &mut Report, f: &mut Fields<'_>, name: &'static str, length| {
        let value = f.required(r, name)?;
        let items = array(r, &f.at(name), value, length, "tensor_count")?;
        each(r, &f.at(name), items, tensor)
    };
    let inputs = tensors(r, &mut f, "inputs", 0..=ruvllm_abi::MAX_INPUTS);
    let outputs = tensors(r, &mut f, "outputs", 1..=1);
    let params = f
        .required(r, "params")
        .and_then(|v| map_of(r, &join(at, "params"), v, NameRule::Symbol, param));
    let resource_limits =
        f.required(r, "resource_limits").and_then(|v| limits(r, &join(at, "resource_limits"), v));
    let platforms =
        f.required(r, "platforms").and_then(|v| platforms(r, &join(at, "platforms"), v));
    let tolerance = f.optional("tolerance").map(|v| tolerance(r, &join(at, "tolerance"), v));
    let benchmarks = match f.optional("benchmarks") {
        None => Some(IndexMap::new()),
        Some(v) => map_of(r, &join(at, "benchmarks"), v, NameRule::Id, benchmark),
    };
    f.finish(r);
    Some(KernelEntry {
        id: id?,
        name: name?,
        op: op?,
        category: category?,
        path: path?,
        size: size?,
        hash: hash?,
        entry_point: entry_point?,
        backward: backward?,
        threads: u32::try_from(threads?).ok()?,
        inputs: inputs?,
        outputs: outputs?,
        params: params?,
        resource_limits: resource_limits?,
        platforms: platforms?,
        tolerance: match tolerance {
            None => None,
            Some(tolerance) => Some(tolerance?),
        },
        benchmarks: benchmarks?,
    })
}

pub(crate) fn path(r: &mut Report, at: &str, json: &Json) -> Option<PackPath> {
    // No length or control character check first: where a path leads is the finding to report.
    let Json::String(value) = json else {
        wrong_type(r, at, json, "a string");
        return None;
    };
    let report = |e: InvalidPath| {
        let code = match e {
            InvalidPath::Escapes => "path_escapes",
            InvalidPath::Form => "path_invalid",
        };
        let short: String = value.chars().take(80).collect();
        r.add(code, at, format!("`{short}`: {e}"));
    };
    value.parse().map_err(report).ok()
}

fn tensor(r: &mut Report, at: &str, json: &Json) -> Option<TensorSpec> {
    let mut f = Fields::of(r, at, json)?;
    let name = f.name(r, "name", NameRule::Symbol);
    let dtype = f.parsed::<DType>(r, "dtype", "dtype_unknown");
    let shape = f.required(r, "shape").and_then(|v| {
        let at = join(at, "shape");
        let items = array(r, &at, v, 1..=limit::RANK, "shape_rank")?;
        each(r, &at, items, dim)
    });
    f.finish(r);
    Some(TensorSpec { name: name?, dtype: dtype?, shape: shape? })
}

pub(crate) fn dim(r: &mut Report, at: &str, json: &Json) -> Option<Dim> {
    match json {
        Json::String(symbol) => {
            NameRule::Symbol.check(r, at, symbol).then(|| Dim::Symbol(symbol.clone()))
        }
        other => integer(r, at, other, 1..=u64::from(u32::MAX), "dim_out_of_range")
            .and_then(|n| u32::try_from(n).ok())
            .map(Dim::Fixed),
    }
}

fn param(r: &mut Report, at: &str, json: &Json) -> Option<ParamSpec> {
    let mut f = Fields::of(r, at, json)?;
    let ty = f.text(r, "type", 0..=limit::TEXT).and_then(|name| {
        let ty = [ParamType::F32, ParamType::U32, ParamType::I32]
            .into_iter()
            .find(|ty| ty.name() == name);
        if ty.is_none() {
            r.add("param_type_unknown", f.at("type"), "use f32, u32 or i32");
        }
        ty
    });
    let default = f.optional("default");
    let default_at = f.at("default");
    f.finish(r);
    let ty = ty?;
    let Some(default) = default else { return Some(ParamSpec { ty, default: None }) };
    let value = match (ty, default) {
        (ParamType::F32, json) => {
            number(json).map(|x| x as f32).filter(|x| x.is_finite()).map(ParamValue::F32)
        }
        (ParamType::U32, Json::Unsigned(x)) => u32::try_from(*x).ok().map(ParamValue::U32),
        (ParamType::I32, Json::Unsigned(x)) => i32::try_from(*x).ok().map(ParamValue::I32),
        (ParamType::I32, Json::Negative(x)) => i32::try_from(*x).ok().map(ParamValue::I32),
        _ => None,
    };
    if value.is_none() {
        let what = format!("the default is no finite {}; write one", ty.name());
        r.add("param_default_invalid", default_at, what);
    }
    Some(ParamSpec { ty, default: Some(value?) })
}

fn limits(r: &mut Report, at: &str, json: &Json) -> Option<ResourceLimits> {
    const CODE: &str = "limit_out_of_range";
    let mut f = Fields::of(r, at, json)?;
    let pages = f.small(r, "max_memory_pages", 1..=limit::MEMORY_PAGES, CODE);
    let ticks = f.integer(r, "max_epoch_ticks", 1..=limit::EPOCH_TICKS, CODE);
    let table = f.small(r, "max_table_elements", 0..=limit::TABLE_ELEMENTS, CODE);
    f.finish(r);
    Some(ResourceLimits {
        max_memory_pages: pages?,
        max_epoch_ticks: ticks?,
        max_table_elements: table?,
    })
}

fn platforms(r: &mut Report, at: &str, json: &Json) -> Option<Platforms> {
    let mut f = Fields::of(r, at, json)?;
    let wasmtime = f.optional("wasmtime").map(|v| {
        let at = join(at, "wasmtime");
        let mut f = Fields::of(r, &at, v)?;
        let min_version = f.parsed(r, "min_version", "version_invalid");
        let features = f.required(r, "features").and_then(|v| {
            let at = f.at("features");
            let items = array(r, &at, v, 0..=limit::FEATURES, "feature_count")?;
            let mut seen = Vec::new();
            each(r, &at, items, |r, at, v| {
                let name = text(r, at, v, 0..=limit::TEXT)?;
                if seen.contains(&name.to_owned()) {
                    r.add("feature_duplicate", at, "the feature is listed twice; keep one");
                }
                seen.push(name.to_owned());
                NameRule::Feature.check(r, at, name).then(|| name.to_owned())
            })
        });
        f.finish(r);
        Some(WasmtimePlatform { min_version: min_version?, features: features? })
    });
    let wamr = f.optional("wamr").map(|v| {
        let at = join(at, "wamr");
        let mut f = Fields::of(r, &at, v)?;
        let min_version = f.parsed(r, "min_version", "version_invalid");
        let aot_available =
            f.required(r, "aot_available").and_then(|v| boolean(r, &f.at("aot_available"), v));
        f.finish(r);
        Some(WamrPlatform { min_version: min_version?, aot_available: aot_available? })
    });
    let native = f.optional("native").map(|v| native(r, &join(at, "native"), v));
    f.finish(r);
    // A native library stands beside the module, never in its place: admission compares the two.
    if wasmtime.is_none() && wamr.is_none() {
        r.add("platform_missing", at, "name at least one executor: wasmtime or wamr");
    }
    Some(Platforms {
        wasmtime: match wasmtime {
            None => None,
            Some(platform) => Some(platform?),
        },
        wamr: match wamr {
            None => None,
            Some(platform) => Some(platform?),
        },
        native: match native {
            None => None,
            Some(platform) => Some(platform?),
        },
    })
}

fn native(r: &mut Report, at: &str, json: &Json) -> Option<NativePlatform> {
    let mut f = Fields::of(r, at, json)?;
    let version_at = f.at("min_runtime_version");
    let min_runtime_version =
        f.optional("min_runtime_version").map(|v| parsed(r, &version_at, v, "version_invalid"));
    let targets = f.required(r, "targets").and_then(|v| {
        let at = f.at("targets");
        let targets = map_of(r, &at, v, NameRule::Target, |r, at, v| {
            let mut f = Fields::of(r, at, v)?;
            let path = f.required(r, "path").and_then(|v| path(r, &f.at("path"), v));
            let size = f.integer(r, "size", 1..=limit::FILE_BYTES, "size_out_of_range");
            let hash = f.parsed(r, "hash", "hash_invalid");
            f.finish(r);
            Some(NativeLibrary { path: path?, size: size?, hash: hash? })
        })?;
        if !(1..=limit::TARGETS).contains(&targets.len()) {
            let what = format!("{} targets; use 1 to {}", targets.len(), limit::TARGETS);
            r.add("target_count", at, what);
            return None;
        }
        Some(targets)
    });
    f.finish(r);
    Some(NativePlatform {
        min_runtime_version: match min_runtime_version {
            None => None,
            Some(version) => Some(version?),
        },
        targets: targets?,
    })
}

pub(crate) fn tolerance(r: &mut Report, at: &str, json: &Json) -> Option<Tolerance> {
    let mut f = Fields::of(r, at, json)?;
    let rel = f.non_negative(r, "rel", "tolerance_invalid");
    let abs = f.non_negative(r, "abs", "tolerance_invalid");
    f.finish(r);
    Some(Tolerance { rel: rel?, abs: abs? })
}

fn benchmark(r: &mut Report, at: &str, json: &Json) -> Option<Benchmark> {
    let mut f = Fields::of(r, at, json)?;
    let latency_us = f.non_negative(r, "latency_us", "benchmark_invalid");
    let at = f.at("throughput_gflops");
    let throughput =
        f.optional("throughput_gflops").map(|v| non_negative(r, &at, v, "benchmark_invalid"));
    f.finish(r);
    Some(Benchmark {
        latency_us: latency_us?,
        throughput_gflops: match throughput {
            None => None,
            Some(x) => Some(x?),
        },
    })
}
