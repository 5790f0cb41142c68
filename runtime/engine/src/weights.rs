//! The weights of a model, found, checked against the configuration, and left where they lie.
//!
//! Matrices stay in the file's own type and in their place; what products read is prepared from them. Norm weights and biases are small and are
//! widened to f32 once; norm weights become [`Resident`] so that a kernel keeps its own copy.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::Range;

use ruvllm_abi::DType;
use ruvllm_host::{PreparedWeights, Resident};
use ruvllm_native::NativeError;
use ruvllm_native::gemm::Weights;
use ruvllm_native::quant::dequantize_row;

use crate::config::{Bias, LayerSpec, ModelConfig, Norm};
use crate::error::EngineError;
use crate::storage::{Tensor, TensorBytes, TensorSource};
use crate::tensors::{LayerModule, Module, Naming, Projection, is_redundant};

/// A projection: a matrix `[rows, cols]` and possibly a bias `[rows]`.
pub(crate) struct Linear {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: TensorBytes,
    index: usize,
    prepared: PreparedWeights,
    pub(crate) bias: Option<Vec<f32>>,
}

impl Linear {
    /// A projection by a tensor `[rows, cols]`.
    fn new(weight: Tensor, bias: Option<Vec<f32>>, index: usize) -> Result<Linear, EngineError> {
        let Tensor { dtype, shape, bytes } = weight;
        let (rows, cols) = (shape[0], shape[1]);
        let prepared = PreparedWeights::default();
        let linear = Linear { dtype, rows, cols, bytes, index, prepared, bias };
        linear.matrix()?;
        Ok(linear)
    }

    /// The matrix as the file has it.
    pub(crate) fn matrix(&self) -> Result<Weights<'_>, NativeError> {
        Weights::new(self.dtype, self.rows, self.cols, self.bytes.as_slice())
    }

    /// Its place among all matrices of the model.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// What providers of products have made of it.
    pub(crate) fn prepared(&self) -> &PreparedWeights {
        &self.prepared
    }

    /// Gives back the memory of a matrix that the file holds in place: it is rarely read from now on.
    pub(crate) fn release(&self) {
        self.bytes.release();
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of the matrix.
    pub(crate) fn size(&self) -> usize {
        self.bytes.as_slice().len()
    }
}

/// A norm with its weights.
pub(crate) struct NormWeights {
    pub(crate) norm: Norm,
    /// `[dim]`
    pub(crate) weight: Resident,
}

/// The weights of one decoder layer.
pub(crate) struct LayerWeights {
    pub(crate) attn_norm: NormWeights,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    pub(crate) ffn_norm: NormWeights,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl LayerWeights {
    pub(crate) fn projection(&self, projection: Projection) -> &Linear {
        match projection {
            Projection::Query => &self.q,
            Projection::Key => &self.k,
            Projection::Value => &self.v,
            Projection::Output => &self.o,
            Projection::Gate => &self.gate,
            Projection::Up => &self.up,
            Projection::Down => &self.down,
        }
    }
}

/// The weights of a model.
pub(crate) struct ModelWeights {
    pub(crate) embedding: Linear,
    /// What providers of embeddings have made of the table.
    pub(crate) embedding_prepared: PreparedWeights,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) output_norm: NormWeights,
    /// `None` where the embedding table serves as output projection too.
    output: Option<Linear>,
}

impl ModelWeights {
    /// Finds and checks every tensor of the model. One that the source has and the model does not is
    /// refused: leaving it out would compute something else than the file describes.
    ///
    /// # Errors
    /// [`EngineError::TensorMissing`], [`EngineError::TensorShape`], [`EngineError::TensorType`] and
    /// [`EngineError::TensorUnused`]; [`EngineError::ConfigInvalid`] where the output projection is not
    /// what the configuration says.
    pub(crate) fn load(
        source: &dyn TensorSource,
        config: &ModelConfig,
    ) -> Result<ModelWeights, EngineError> {
        let loader = Loader { source, matrices: Cell::new(0), used: RefCell::default() };
        let embedding = loader.embedding(config.dim)?;
        let output = loader.output(&embedding, config)?;
        let layers = config.layers.iter().enumerate();
        let layers = layers
            .map(|(index, spec)| loader.layer(index, spec, config))
            .collect::<Result<_, _>>()?;
        let output_norm = loader.norm(Module::OutputNorm, config.output_norm, config.dim)?;
        loader.refuse_unused(&config.architecture)?;
        let embedding_prepared = PreparedWeights::default();
        Ok(ModelWeights { embedding, embedding_prepared, layers, output_norm, output })
    }

    /// Bytes of the matrices that products are computed with.
    pub(crate) fn bytes_multiplied(&self) -> usize {
        self.multiplied().map(Linear::size).sum()
    }

    /// Every matrix that products are computed with.
    pub(crate) fn multiplied(&self) -> impl Iterator<Item = &Linear> {
        self.projections().chain([self.output()])
    }

    /// The projection from hidden states to logits.
    pub(crate) fn output(&self) -> &Linear {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Number of tokens of the vocabulary, as the embedding table has rows.
    pub(crate) fn vocab(&self) -> usize {
        self.embedding.rows
    }

    /// Bytes and parameters of all matrices.
    pub(crate) fn totals(&self) -> (usize, usize) {
        self.matrices().fold((0, 0), |(bytes, n), w| (bytes + w.size(), n + w.rows * w.cols))
    }

    /// The element type that holds most parameters.
    pub(crate) fn main_dtype(&self) -> DType {
        let parameters = |dtype: DType| -> usize {
            self.matrices().filter(|w| w.dtype == dtype).map(|w| w.rows * w.cols).sum()
        };
        DType::ALL.into_iter().max_by_key(|&dtype| parameters(dtype)).unwrap_or(DType::F32)
    }

    /// Hands over type, shape and the first and last bytes of every matrix.
    pub(crate) fn sample(&self, each: &mut dyn FnMut(&[u8])) {
        const ENDS: usize = 1024;
        for matrix in self.matrices() {
            each(matrix.dtype.name().as_bytes());
            each(&(matrix.rows as u64).to_le_bytes());
            each(&(matrix.cols as u64).to_le_bytes());
            let bytes = matrix.bytes.as_slice();
            each(&bytes[..bytes.len().min(ENDS)]);
            each(&bytes[bytes.len().saturating_sub(ENDS)..]);
        }
    }

    fn matrices(&self) -> impl Iterator<Item = &Linear> {
        std::iter::once(&self.embedding).chain(self.output.as_ref()).chain(self.projections())
    }

    fn projections(&self) -> impl Iterator<Item = &Linear> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| Projection::ALL.map(|projection| layer.projection(projection)))
    }
}

struct Loader<'a> {
    source: &'a dyn TensorSource,
    /// Matrices so far.
    matrices: Cell<usize>,
    /// The names of the tensors that were asked for.
    used: RefCell<HashSet<String>>,
}

impl Loader<'_> {
    /// The index of the next matrix.
    fn next(&self) -> usize {
        self.matrices.replace(self.matrices.get() + 1)
    }

    fn find(&self, name: &str) -> Result<Option<Tensor>, EngineError> {
        let found = self.source.find(name)?;
        if found.is_some() {
            self.used.borrow_mut().insert(name.to_owned());
        }
        Ok(found)
    }

    /// Refuses what nobody asked for.
    fn refuse_unused(&self, architecture: &str) -> Result<(), EngineError> {
        let (used, naming) = (self.used.borrow(), self.source.naming());
        let mut unused: Vec<&str> = self.source.names();
        unused.retain(|name| !used.contains(*name) && !is_redundant(naming, name));
        let Some(first) = unused.iter().min() else { return Ok(()) };
        Err(EngineError::TensorUnused {
            path: self.source.origin().to_owned(),
            tensor: (*first).to_owned(),
            others: unused.len() - 1,
            architecture: architecture.to_owned(),
        })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, EngineError> {
        self.find(name)?.ok_or_else(|| EngineError::TensorMissing {
            path: self.source.origin().to_owned(),
            tensor: name.to_owned(),
        })
    }

    fn shaped(&self, name: &str, expected: &[usize]) -> Result<Tensor, EngineError> {
        let tensor = self.tensor(name)?;
        if tensor.shape == expected {
            return Ok(tensor);
        }
        Err(EngineError::TensorShape {
            path: self.source.origin().to_owned(),
            tensor: name.to_owned(),
            found: tensor.shape,
            expected: expected.to_vec(),
        })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, EngineError> {
        let tensor = self.shaped(name, &[len])?;
        let mut values = vec![0.0; len];
        dequantize_row(tensor.dtype, tensor.bytes.as_slice(), &mut values)?;
        Ok(values)
    }

    fn norm(&self, module: Module, norm: Norm, dim: usize) -> Result<NormWeights, EngineError> {
        let weight = self.vector(&module.weight(self.source.naming()), dim)?;
        Ok(NormWeights { norm, weight: Resident::from_f32(&weight) })
    }

    /// The embedding table has as many rows as the vocabulary has tokens; only its width is known.
    fn embedding(&self, dim: usize) -> Result<Linear, EngineError> {
        let name = Module::TokenEmbedding.weight(self.source.naming());
        let rows = match self.tensor(&name)?.shape[..] {
            [rows, _] if rows > 0 && rows <= u32::MAX as usize => rows,
            _ => 0,
        };
        let tensor = self.shaped(&name, &[rows, dim])?;
        Linear::new(tensor, None, self.next())
    }

    /// The output projection, where it is another matrix than the embedding table.
    fn output(
        &self,
        embedding: &Linear,
        config: &ModelConfig,
    ) -> Result<Option<Linear>, EngineError> {
        let naming = self.source.naming();
        let name = Module::Output.weight(naming);
        let refuse = |value: bool, reason: String| EngineError::ConfigInvalid {
            path: self.source.origin().to_owned(),
            key: "tie_word_embeddings".to_owned(),
            value: value.to_string(),
            reason,
        };
        let Some(tensor) = self.find(&name)? else {
            // A GGUF file has no other way to say that they are one.
            if config.tied_embeddings || naming == Naming::Gguf {
                return Ok(None);
            }
            let reason = format!(
                "the checkpoint has no `{name}`; if the embedding table serves as output projection, set it to true"
            );
            return Err(refuse(false, reason));
        };
        if config.tied_embeddings {
            let same = tensor.dtype == embedding.dtype
                && tensor.shape == [embedding.rows, embedding.cols]
                && tensor.bytes.as_slice() == embedding.bytes.as_slice();
            let reason = format!(
                "`{name}` is not the embedding table; set it to false to compute with it, or save the checkpoint without it"
            );
            return if same { Ok(None) } else { Err(refuse(true, reason)) };
        }
        let rows = embedding.rows;
        let tensor = self.shaped(&name, &[rows, config.dim])?;
        let bias = match naming {
            Naming::Gguf => self.bias(Module::Output, rows, Bias::IfPresent)?,
            // No class of models has one.
            Naming::HuggingFace => None,
        };
        Linear::new(tensor, bias, self.next()).map(Some)
    }

    /// The bias `[rows]` of a module, where it has one.
    fn bias(&self, of: Module, rows: usize, bias: Bias) -> Result<Option<Vec<f32>>, EngineError> {
        let name = of.bias(self.source.naming());
        match bias {
            Bias::Absent => Ok(None),
            Bias::IfPresent if self.find(&name)?.is_none() => Ok(None),
            Bias::IfPresent | Bias::Required => self.vector(&name, rows).map(Some),
        }
    }

    /// A projection of a layer.
    fn linear(
        &self,
        index: usize,
        projection: Projection,
        [rows, cols]: [usize; 2],
        bias: Bias,
    ) -> Result<Linear, EngineError> {
        let module = Module::Layer(index, LayerModule::Projection(projection));
        let tensor = self.shaped(&module.weight(self.source.naming()), &[rows, cols])?;
        Linear::new(tensor, self.bias(module, rows, bias)?, self.next())
    }

    /// The projections of queries, keys and values: three matrices, or rows of one.
    fn qkv(
        &self,
        index: usize,
        bias: Bias,
        config: &ModelConfig,
    ) -> Result<[Linear; 3], EngineError> {
        let (dim, q, kv) = (config.dim, config.q_dim(), config.kv_dim());
        let module = Module::Layer(index, LayerModule::Qkv);
        let name = module.weight(self.source.naming());
        if self.find(&name)?.is_none() {
            return Ok([
                self.linear(index, Projection::Query, [q, dim], bias)?,
                self.linear(index, Projection::Key, [kv, dim], bias)?,
                self.linear(index, Projection::Value, [kv, dim], bias)?,
            ]);
        }
        let weight = self.shaped(&name, &[q + 2 * kv, dim])?;
        let bias = self.bias(module, q + 2 * kv, bias)?;
        let part = |rows: Range<usize>| {
            let bias = bias.as_ref().map(|bias| bias[rows.clone()].to_vec());
            Linear::new(weight.rows(rows), bias, self.next())
        };
        Ok([part(0..q)?, part(q..q + kv)?, part(q + kv..q + 2 * kv)?])
    }

    fn layer(
        &self,
        index: usize,
        spec: &LayerSpec,
        config: &ModelConfig,
    ) -> Result<LayerWeights, EngineError> {
        let norm = |module, norm| self.norm(Module::Layer(index, module), norm, config.dim);
        let linear = |projection, shape, bias| self.linear(index, projection, shape, bias);
        let (dim, ffn) = (config.dim, config.ffn_dim);
        let [q, k, v] = self.qkv(index, spec.attention.qkv_bias, config)?;
        let output_shape = [dim, config.q_dim()];
        Ok(LayerWeights {
            attn_norm: norm(LayerModule::AttnNorm, spec.attn_norm)?,
            q,
            k,
            v,
            o: linear(Projection::Output, output_shape, spec.attention.output_bias)?,
            ffn_norm: norm(LayerModule::FfnNorm, spec.ffn_norm)?,
            gate: linear(Projection::Gate, [ffn, dim], spec.ffn_bias)?,
            up: linear(Projection::Up, [ffn, dim], spec.ffn_bias)?,
            down: linear(Projection::Down, [dim, ffn], spec.ffn_bias)?,
        })
    }
}
