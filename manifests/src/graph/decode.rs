//! From JSON to a graph's entry, and the rules that it has to keep.

use super::{
    EMBEDDING_INPUTS, GraphCheck, GraphEmbedding, GraphEntry, GraphFile, GraphFormat, GraphLimits,
    GraphTensor, GraphType, GraphValues, Pooling,
};
use crate::check::limit;
use crate::decode::{dim, path, tolerance};
use crate::json::Json;
use crate::reader::{
    Fields, NameRule, Report, array, boolean, each, integer, join, map_of, number, wrong_type,
};
use crate::types::Dim;
use crate::{ManifestError, PackPath, Sha256Hex};

/// Reads one entry by itself.
pub(crate) fn entry(bytes: &[u8]) -> Result<GraphEntry, ManifestError> {
    if bytes.len() > limit::MANIFEST_BYTES {
        return Err(ManifestError::TooLarge { size: bytes.len(), max: limit::MANIFEST_BYTES });
    }
    let json: Json = serde_json::from_slice(bytes)
        .map_err(|e| ManifestError::Syntax { message: e.to_string() })?;
    let mut report = Report::default();
    match graph(&mut report, "graph", &json) {
        Some(entry) if report.is_empty() => Ok(entry),
        _ => Err(ManifestError::Invalid(report.finish())),
    }
}

pub(crate) fn graph(r: &mut Report, at: &str, json: &Json) -> Option<GraphEntry> {
    let mut f = Fields::of(r, at, json)?;
    let id = f.name(r, "id", NameRule::Id);
    let name = f.text(r, "name", 1..=limit::TEXT);
    let format = f.parsed::<GraphFormat>(r, "format", "graph_format_unknown");
    let file = file_fields(r, &mut f, at);
    let tensors = |r: &mut Report, f: &mut Fields<'_>, name: &'static str| {
        let value = f.required(r, name)?;
        let items = array(r, &f.at(name), value, 1..=limit::GRAPH_TENSORS, "tensor_count")?;
        each(r, &f.at(name), items, tensor)
    };
    let inputs = tensors(r, &mut f, "inputs");
    let outputs = tensors(r, &mut f, "outputs");
    let extents = f.required(r, "extents").and_then(|v| {
        map_of(r, &join(at, "extents"), v, NameRule::Symbol, |r, at, v| {
            integer(r, at, v, 1..=u64::from(u32::MAX), "dim_out_of_range")
                .and_then(|n| u32::try_from(n).ok())
        })
    });
    let resource_limits = f.required(r, "resource_limits").and_then(|v| {
        let at = join(at, "resource_limits");
        let mut f = Fields::of(r, &at, v)?;
        const CODE: &str = "limit_out_of_range";
        let memory = f.integer(r, "max_memory_bytes", 1..=limit::GRAPH_MEMORY, CODE);
        let millis = f.integer(r, "max_millis", 1..=limit::GRAPH_MILLIS, CODE);
        f.finish(r);
        Some(GraphLimits { max_memory_bytes: memory?, max_millis: millis? })
    });
    let tolerance =
        f.required(r, "tolerance").and_then(|v| tolerance(r, &join(at, "tolerance"), v));
    let checks = f.required(r, "checks").and_then(|v| {
        let at = join(at, "checks");
        let items = array(r, &at, v, 1..=limit::GRAPH_CHECKS, "check_count")?;
        each(r, &at, items, check)
    });
    let embedding = f.optional("embedding").map(|v| embedding(r, &join(at, "embedding"), v));
    f.finish(r);
    let (path, size, hash) = file?;
    let entry = GraphEntry {
        id: id?,
        name: name?,
        format: format?,
        path,
        size,
        hash,
        inputs: inputs?,
        outputs: outputs?,
        extents: extents?,
        resource_limits: resource_limits?,
        tolerance: tolerance?,
        checks: checks?,
        embedding: match embedding {
            None => None,
            Some(embedding) => Some(embedding?),
        },
    };
    rules(r, at, &entry);
    Some(entry)
}

fn file_fields(r: &mut Report, f: &mut Fields<'_>, at: &str) -> Option<(PackPath, u64, Sha256Hex)> {
    let path = f.required(r, "path").and_then(|v| path(r, &join(at, "path"), v));
    let size = f.integer(r, "size", 1..=limit::GRAPH_FILE_BYTES, "size_out_of_range");
    let hash = f.parsed(r, "hash", "hash_invalid");
    Some((path?, size?, hash?))
}

fn tensor(r: &mut Report, at: &str, json: &Json) -> Option<GraphTensor> {
    let mut f = Fields::of(r, at, json)?;
    let name = f.text(r, "name", 1..=limit::TEXT);
    let ty = f.parsed::<GraphType>(r, "dtype", "dtype_unknown");
    let shape = f.required(r, "shape").and_then(|v| {
        let at = join(at, "shape");
        let items = array(r, &at, v, 0..=limit::RANK, "shape_rank")?;
        each(r, &at, items, dim)
    });
    f.finish(r);
    Some(GraphTensor { name: name?, ty: ty?, shape: shape? })
}

fn check(r: &mut Report, at: &str, json: &Json) -> Option<GraphCheck> {
    let mut f = Fields::of(r, at, json)?;
    let values = |r: &mut Report, f: &mut Fields<'_>, name: &'static str| {
        let value = f.required(r, name)?;
        let items = array(r, &f.at(name), value, 1..=limit::GRAPH_TENSORS, "tensor_count")?;
        each(r, &f.at(name), items, values)
    };
    let inputs = values(r, &mut f, "inputs");
    let outputs = values(r, &mut f, "outputs");
    f.finish(r);
    Some(GraphCheck { inputs: inputs?, outputs: outputs? })
}

fn values(r: &mut Report, at: &str, json: &Json) -> Option<GraphValues> {
    let mut f = Fields::of(r, at, json)?;
    let name = f.text(r, "name", 1..=limit::TEXT);
    let shape = f.required(r, "shape").and_then(|v| {
        let at = join(at, "shape");
        let items = array(r, &at, v, 0..=limit::RANK, "shape_rank")?;
        each(r, &at, items, |r, at, v| {
            integer(r, at, v, 1..=u64::from(u32::MAX), "dim_out_of_range")
                .and_then(|n| u32::try_from(n).ok())
        })
    });
    let values = f.required(r, "values").and_then(|v| {
        let at = join(at, "values");
        let items = array(r, &at, v, 1..=limit::GRAPH_VALUES, "value_count")?;
        each(r, &at, items, |r, at, v| match number(v) {
            Some(x) if x.is_finite() => Some(x),
            _ => {
                wrong_type(r, at, v, "a finite number");
                None
            }
        })
    });
    f.finish(r);
    Some(GraphValues { name: name?, shape: shape?, values: values? })
}

fn embedding(r: &mut Report, at: &str, json: &Json) -> Option<GraphEmbedding> {
    let mut f = Fields::of(r, at, json)?;
    let tokenizer = f.required(r, "tokenizer").and_then(|v| {
        let at = join(at, "tokenizer");
        let mut f = Fields::of(r, &at, v)?;
        let file = file_fields(r, &mut f, &at);
        f.finish(r);
        let (path, size, hash) = file?;
        Some(GraphFile { path, size, hash })
    });
    let pooling = f.parsed::<Pooling>(r, "pooling", "pooling_unknown");
    let normalize = f.required(r, "normalize").and_then(|v| boolean(r, &join(at, "normalize"), v));
    let max_tokens = f.small(r, "max_tokens", 1..=u32::MAX, "limit_out_of_range");
    f.finish(r);
    Some(GraphEmbedding {
        tokenizer: tokenizer?,
        pooling: pooling?,
        normalize: normalize?,
        max_tokens: max_tokens?,
    })
}

/// What spans the fields of an entry.
fn rules(r: &mut Report, at: &str, entry: &GraphEntry) {
    for (field, tensors) in [("inputs", &entry.inputs), ("outputs", &entry.outputs)] {
        for (i, tensor) in tensors.iter().enumerate() {
            let at = format!("{at}.{field}[{i}]");
            if tensors[..i].iter().any(|other| other.name == tensor.name) {
                let what = format!("`{}` is taken; a graph has each name once", tensor.name);
                r.add("tensor_name_duplicate", format!("{at}.name"), what);
            }
            let missing = tensor
                .shape
                .iter()
                .any(|dim| matches!(dim, Dim::Symbol(name) if !entry.extents.contains_key(name)));
            if missing {
                let what = "every extent that is named needs its largest value in `extents`";
                r.add("extent_unbounded", format!("{at}.shape"), what);
            } else if entry.largest(tensor) > limit::GRAPH_ELEMENTS {
                let most = limit::GRAPH_ELEMENTS;
                let what = format!("more than {most} elements at the largest extents: lower them");
                r.add("tensor_too_large", format!("{at}.shape"), what);
            }
        }
    }
    for (i, check) in entry.checks.iter().enumerate() {
        let at = format!("{at}.checks[{i}]");
        let named = |values: &[GraphValues]| -> Vec<String> {
            values.iter().map(|values| values.name.clone()).collect()
        };
        if !named(&check.inputs).iter().eq(entry.inputs.iter().map(|input| &input.name)) {
            let what = "give every input once, in the graph's order";
            r.add("check_inputs", format!("{at}.inputs"), what);
        }
        given(r, &format!("{at}.inputs"), &check.inputs, &entry.inputs, entry);
        given(r, &format!("{at}.outputs"), &check.outputs, &entry.outputs, entry);
    }
    if let Some(embedding) = &entry.embedding {
        embeds(r, at, entry, embedding);
    }
}

/// Whether values are those of one of the tensors.
fn given(
    r: &mut Report,
    at: &str,
    all: &[GraphValues],
    tensors: &[GraphTensor],
    entry: &GraphEntry,
) {
    for (i, values) in all.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == values.name) else {
            r.add("check_tensor", at, "the graph has no tensor of this name here");
            continue;
        };
        let fits = |(dim, n): (&Dim, &u32)| match dim {
            Dim::Fixed(fixed) => fixed == n,
            Dim::Symbol(name) => entry.extents.get(name).is_some_and(|most| n <= most),
        };
        let matches = tensor.shape.len() == values.shape.len()
            && tensor.shape.iter().zip(&values.shape).all(fits);
        if !matches {
            r.add("check_shape", format!("{at}.shape"), "not a shape that the tensor can have");
            continue;
        }
        let count = values.shape.iter().fold(1u64, |n, d| n.saturating_mul(u64::from(*d)));
        if count != values.values.len() as u64 {
            let what = format!("the shape has {count} elements, these are {}", values.values.len());
            r.add("check_shape", format!("{at}.values"), what);
        }
        if !values.values.iter().all(|value| tensor.ty.holds(*value)) {
            let what = format!("a value is no {}", tensor.ty);
            r.add("check_value", format!("{at}.values"), what);
        }
    }
}

/// Whether tokens can go in and a vector come out.
fn embeds(r: &mut Report, at: &str, entry: &GraphEntry, embedding: &GraphEmbedding) {
    let at = format!("{at}.embedding");
    let tokens = |tensor: &GraphTensor| {
        let whole = matches!(tensor.ty, GraphType::I32 | GraphType::I64);
        whole && EMBEDDING_INPUTS.contains(&tensor.name.as_str()) && tensor.shape.len() == 2
    };
    let named = |name: &str| entry.inputs.iter().any(|input| input.name == name);
    if !entry.inputs.iter().all(tokens) || !named(EMBEDDING_INPUTS[0]) {
        let what = "the inputs must be input_ids and at most attention_mask and token_type_ids beside, \
                    each [batch, tokens] of i32 or i64";
        r.add("embedding_inputs", &at, what);
    }
    let output = &entry.outputs[0];
    let rank = if embedding.pooling == Pooling::None { 2 } else { 3 };
    let width = matches!(output.shape.last(), Some(Dim::Fixed(_)));
    if output.ty != GraphType::F32 || output.shape.len() != rank || !width {
        let what = "the first output must be f32, [batch, tokens, width] with a fixed width, or [batch, width] \
                    where pooling is none";
        r.add("embedding_output", &at, what);
    }
    let room = entry.inputs.iter().filter_map(|input| input.shape.get(1)).all(|dim| match dim {
        Dim::Fixed(_) => false,
        Dim::Symbol(name) => {
            entry.extents.get(name).is_some_and(|most| embedding.max_tokens <= *most)
        }
    });
    if !room {
        let what = "texts differ in length: the tokens of the inputs must be an extent with a name, whose largest \
                    value is this at least";
        r.add("embedding_tokens", format!("{at}.max_tokens"), what);
    }
}
