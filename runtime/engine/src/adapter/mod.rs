//! LoRA adapters (arXiv 2106.09685): what sessions add to a model's projections, `scale * B A x`.
//!
//! An [`Adapter`] is immutable and belongs to one model. It is read from a GGUF adapter or a PEFT
//! directory (`gguf`, `peft`), checked against the model when it is opened, and laid out as the
//! `lora_apply` kernels of the registry take it, in f32. Its fingerprint, over factors, scales and
//! targets, is its generation: keys and values are only shared among sessions of one generation, and
//! a saved session is only continued by the one that wrote it.
//!
//! Invariants: an adapter's weights count against the engine's memory for as long as it lives; a step
//! never meets factors that do not fit their projection. Not checked: whether the adapter was trained
//! on this model, where one of the same shape exists.

mod file;
mod gguf;
mod peft;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ruvllm_host::{LARGEST_INPUT, LoraDims, Owner, Resident};
use ruvllm_native::ops::{LoraShape, lora_interleave};
use ruvllm_native::quant::dequantize_row;

use crate::config::RopeLayout;
use crate::error::{EngineError, short_hash};
use crate::memory::Reservation;
use crate::model::Model;
use crate::storage::Tensor;
use crate::tensors::{Naming, Projection};
use file::{AdapterFile, FactorPair, Scaling};

/// What an adapter adds to one projection.
pub(crate) struct LoraUpdate {
    /// Both factors, as the kernel takes them.
    pub(crate) factors: Resident,
    /// Their extents; `rows` is 0.
    pub(crate) dims: LoraDims,
    pub(crate) scale: f32,
}

/// A LoRA adapter of a model. Cheap to clone; clones share everything.
///
/// ```no_run
/// use ruvllm_engine::{Adapter, Engine, EngineError, Session, SessionOptions};
/// use std::path::Path;
///
/// fn adapted(engine: &Engine) -> Result<Session, EngineError> {
///     let adapter = Adapter::open(engine, Path::new("adapter.gguf"), 1.0)?;
///     let options = SessionOptions { adapter: Some(adapter), ..SessionOptions::default() };
///     Ok(engine.session_with(&options))
/// }
/// ```
#[derive(Clone)]
pub struct Adapter {
    inner: Arc<AdapterInner>,
}

struct AdapterInner {
    name: String,
    rank: usize,
    alpha: f32,
    scale: f32,
    fingerprint: [u8; 32],
    layers: Vec<[Option<LoraUpdate>; Projection::ALL.len()]>,
    model: Arc<Model>,
    /// Counts the factors for as long as they live.
    reserved: Reservation,
}

impl Adapter {
    /// Reads a GGUF adapter or a PEFT directory and checks it against the model; `reserve` counts the bytes
    /// of its factors, under its name, before they are laid out.
    ///
    /// # Errors
    /// As [`Adapter::open`], and what `reserve` gives.
    pub(crate) fn load(
        model: &Arc<Model>,
        path: &Path,
        scale: f32,
        reserve: impl FnOnce(&str, usize) -> Result<Reservation, EngineError>,
    ) -> Result<Adapter, EngineError> {
        let kind = std::fs::metadata(path).map_err(|e| EngineError::io(path, e))?;
        let file = if kind.is_dir() { peft::read(path)? } else { gguf::read(path)? };
        Adapter::of(&file, model, scale, reserve)
    }

    /// Checks every update against the model, counts the memory, and lays the factors out.
    fn of(
        file: &AdapterFile,
        model: &Arc<Model>,
        scale: f32,
        reserve: impl FnOnce(&str, usize) -> Result<Reservation, EngineError>,
    ) -> Result<Adapter, EngineError> {
        let family = &model.config().architecture;
        if let Some(architecture) = file.architecture.as_ref().filter(|&name| name != family) {
            return Err(file.mismatch(format!("it is for {architecture}, the model is {family}")));
        }
        let all = file
            .pairs
            .iter()
            .map(|(&(layer, target), pair)| Factors::of(file, model, layer, target, pair));
        let all: Vec<Factors<'_>> = all.collect::<Result<_, _>>()?;
        if all.is_empty() {
            return Err(file.damaged("it has no factors".to_owned()));
        }
        let bytes = all.iter().map(|f| f.shape.groups() * f.shape.rank * 4 * size_of::<f32>());
        let reserved = reserve(&file.name, bytes.sum())?;

        // Whoever computes without it must not see it.
        let owner = Owner::unique();
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm adapter fingerprint v1");
        let mut layers: Vec<_> =
            model.weights().layers.iter().map(|_| Default::default()).collect();
        for factors in &all {
            let update = factors.update(file, model, scale, owner)?;
            hasher.update(&(factors.layer as u64).to_le_bytes());
            hasher.update(factors.target.name(Naming::Gguf).as_bytes());
            hasher.update(&update.dims.rank.to_le_bytes());
            hasher.update(&update.scale.to_le_bytes());
            hasher.update(update.factors.bytes());
            let layer: &mut [_; Projection::ALL.len()] = &mut layers[factors.layer];
            layer[factors.target as usize] = Some(update);
        }
        let inner = AdapterInner {
            name: file.name.clone(),
            rank: all.iter().map(|f| f.shape.rank).max().unwrap_or(0),
            alpha: file.alpha,
            scale,
            fingerprint: *hasher.finalize().as_bytes(),
            layers,
            model: Arc::clone(model),
            reserved,
        };
        Ok(Adapter { inner: Arc::new(inner) })
    }

    /// The adapter's own name, or that of its file.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The largest rank among its updates.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// The file's alpha: updates without one of their own are multiplied by alpha over rank, or what the
    /// file says instead.
    pub fn alpha(&self) -> f32 {
        self.inner.alpha
    }

    /// The scale that it was opened with.
    pub fn scale(&self) -> f32 {
        self.inner.scale
    }

    /// Bytes of its factors in memory.
    pub fn bytes(&self) -> usize {
        self.inner.reserved.bytes()
    }

    /// A hash of factors, scales and targets, which tells adapters and their generations apart. The
    /// same for a PEFT adapter and its conversion to GGUF in f32.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.inner.fingerprint
    }

    /// The beginning of [`Adapter::fingerprint`] in hexadecimal, for people.
    pub fn generation(&self) -> String {
        short_hash(&self.inner.fingerprint)
    }

    /// Whether it can compute with this model.
    pub(crate) fn is_for(&self, model: &Model) -> bool {
        std::ptr::eq(&*self.inner.model, model)
    }

    /// What it adds to a projection of a layer.
    pub(crate) fn update(&self, layer: usize, target: Projection) -> Option<&LoraUpdate> {
        self.inner.layers.get(layer)?[target as usize].as_ref()
    }
}

/// Adapters are equal if they add the same.
impl PartialEq for Adapter {
    fn eq(&self, other: &Adapter) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) || self.inner.fingerprint == other.inner.fingerprint
    }
}

impl Eq for Adapter {}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("name", &self.inner.name)
            .field("rank", &self.inner.rank)
            .field("scale", &self.inner.scale)
            .finish_non_exhaustive()
    }
}

/// Both factors of an update, checked against its projection.
struct Factors<'a> {
    layer: usize,
    target: Projection,
    a: &'a Tensor,
    b: &'a Tensor,
    alpha: f32,
    shape: LoraShape,
    dims: LoraDims,
}

impl<'a> Factors<'a> {
    /// The factors of an update, if they fit their projection.
    fn of(
        file: &AdapterFile,
        model: &Model,
        layer: usize,
        target: Projection,
        pair: &'a FactorPair,
    ) -> Result<Factors<'a>, EngineError> {
        let (Some((a_name, a)), Some((b_name, b))) = (&pair.a, &pair.b) else {
            let name = pair.a.as_ref().or(pair.b.as_ref()).map_or("", |(name, _)| name);
            return Err(file.damaged(format!("tensor `{name}` lacks its other factor")));
        };
        let layers = &model.weights().layers;
        let Some(weights) = layers.get(layer) else {
            let reason = format!("tensor `{a_name}` is of none of its {} layers", layers.len());
            return Err(file.mismatch(reason));
        };
        let linear = weights.projection(target);
        let (in_dim, out_dim) = (linear.cols(), linear.rows());
        let rank = pair.rank.or(a.shape.first().copied()).unwrap_or(0);
        let alpha = pair.alpha.unwrap_or(file.alpha);
        for (name, found, expected) in
            [(a_name, &a.shape, [rank, in_dim]), (b_name, &b.shape, [out_dim, rank])]
        {
            if found[..] != expected {
                let reason = format!(
                    "tensor `{name}` has shape {found:?}, but a projection of shape {:?} takes {expected:?}",
                    [out_dim, in_dim]
                );
                return Err(file.mismatch(reason));
            }
        }
        let shape = LoraShape { rows: 0, in_dim, rank, out_dim, scale: 1.0 };
        let dims = match [in_dim, rank, out_dim].map(u32::try_from) {
            [Ok(in_dim), Ok(rank @ 1..), Ok(out_dim)] => {
                LoraDims { rows: 0, in_dim, rank, out_dim }
            }
            _ => return Err(file.damaged(format!("tensor `{a_name}` has rank {rank}"))),
        };
        Ok(Factors { layer, target, a, b, alpha, shape, dims })
    }

    /// Lays an update out for the kernel, with the rows of heads in the model's order.
    fn update(
        &self,
        file: &AdapterFile,
        model: &Model,
        scale: f32,
        owner: Owner,
    ) -> Result<LoraUpdate, EngineError> {
        let Factors { layer, target, a, b, alpha, shape, dims } = self;
        let (a, mut b) = (values(a)?, values(b)?);
        let config = model.config();
        if matches!(target, Projection::Query | Projection::Key)
            && file.layout != config.rope.layout
        {
            b = reordered(&b, shape.rank, config.head_dim, config.rope.layout);
        }
        let rank = shape.rank as f32;
        let scale = match file.scaling {
            Scaling::Rank => scale * alpha / rank,
            Scaling::RankRoot => scale * alpha / rank.sqrt(),
            Scaling::None => scale,
        };
        let part = target.name(Naming::Gguf);
        if !a.iter().chain(&b).chain([&scale]).all(|x| x.is_finite()) {
            return Err(file.damaged(format!("the update of blk.{layer}.{part} is not finite")));
        }
        let gain = largest_gain(&a, &b, shape, scale);
        if gain > MAX_GAIN {
            return Err(file.damaged(format!(
                "the update of blk.{layer}.{part} makes inputs up to {gain:.1e} times as large, and no model computes with more than {MAX_GAIN:.1e}"
            )));
        }
        let factors = Resident::owned_f32(&lora_interleave(shape, &a, &b)?, owner);
        Ok(LoraUpdate { factors, dims: *dims, scale })
    }
}

/// How large an update may make an input. Activations of models are numbers of 16-bit floats, so none is above
/// 65504, the largest of these; and what an adapter makes of them must stay in the range of the operations
/// that compute with it next. Adapters that were trained come to a few hundred.
const MAX_GAIN: f64 = LARGEST_INPUT as f64 / 65_504.0;

/// The largest magnitude in `A x`, `B A x` and `scale * B A x` for inputs of magnitude 1: the infinity norms
/// of `|A|` `[rank, in_dim]` and of `|B| |A|`, `|B|` being `[out_dim, rank]`.
fn largest_gain(a: &[f32], b: &[f32], shape: &LoraShape, scale: f32) -> f64 {
    let sum = |row: &[f32]| row.iter().map(|x| f64::from(x.abs())).sum::<f64>();
    let inner: Vec<f64> = a.chunks_exact(shape.in_dim).map(sum).collect();
    let outer = b.chunks_exact(shape.rank).map(|row| {
        let terms = row.iter().zip(&inner).map(|(b, a)| f64::from(b.abs()) * a);
        terms.sum::<f64>() * f64::from(scale.abs()).max(1.0)
    });
    inner.iter().copied().chain(outer).fold(0.0, f64::max)
}

/// A tensor's elements, row by row.
fn values(tensor: &Tensor) -> Result<Vec<f32>, EngineError> {
    let mut values = vec![0.0; tensor.shape.iter().product()];
    dequantize_row(tensor.dtype, tensor.bytes.as_slice(), &mut values)?;
    Ok(values)
}

/// `b` `[heads * head_dim, rank]` with the rows of each head in the order `to` instead of the other:
/// pairs that are rotated together lie next to each other, or half a head apart.
fn reordered(b: &[f32], rank: usize, head_dim: usize, to: RopeLayout) -> Vec<f32> {
    let half = head_dim / 2;
    let from = |row: usize| match to {
        RopeLayout::Interleaved => (row % 2) * half + row / 2,
        RopeLayout::NeoX => (row % half) * 2 + row / half,
    };
    let heads = b.chunks_exact(head_dim * rank);
    let rows =
        heads.flat_map(|head| (0..head_dim).flat_map(move |row| &head[from(row) * rank..][..rank]));
    rows.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_heads_change_order_and_back() {
        // Two heads of four rows, two ranks; each element names its head, row and rank.
        let rows: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let interleaved = reordered(&rows, 2, 4, RopeLayout::Interleaved);
        let first = |values: &[f32]| values.iter().step_by(2).map(|x| *x as usize / 2).collect();
        let order: Vec<usize> = first(&interleaved);
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(reordered(&interleaved, 2, 4, RopeLayout::NeoX), rows);
    }
}
