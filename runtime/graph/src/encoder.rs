//! Texts to vectors: tokenizer, graph and pooling of one pack.

use ruvllm_engine::tokenizer::{Tokenizer, TokenizerError};
use ruvllm_engine::unit_length;
use ruvllm_host::graph::{GraphError, GraphValue};
use ruvllm_manifest::{Dim, EMBEDDING_INPUTS, GraphEmbedding, GraphType, Pooling};
use thiserror::Error;

use crate::pack::AdmittedGraph;

/// An encoder of texts.
#[derive(Debug)]
pub struct TextEncoder {
    graph: AdmittedGraph,
    embedding: GraphEmbedding,
    tokenizer: Tokenizer,
    dim: usize,
}

/// Why there is no encoder, or no vector.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EncoderError {
    /// The graph is not made for texts.
    #[error("graph `{graph}` says nothing of embeddings: its manifest needs `embedding`")]
    NoEmbedding {
        /// Its id.
        graph: String,
    },
    /// The tokenizer of the pack cannot be used, or not for this text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A text is longer than the graph takes.
    #[error("the text has {tokens} tokens, the model takes {most}: shorten it")]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// The most.
        most: usize,
    },
    /// There are no tokens to make a vector of.
    #[error("the text has no tokens")]
    Empty,
    /// Computing failed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl EncoderError {
    /// A stable code in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            EncoderError::NoEmbedding { .. } => "graph_no_embedding",
            EncoderError::Tokenizer(error) => error.code(),
            EncoderError::TooLong { .. } => "context_length_exceeded",
            EncoderError::Empty => "empty_prompt",
            EncoderError::Graph(error) => error.code(),
        }
    }
}

impl TextEncoder {
    /// Makes an encoder of a graph whose manifest says how.
    ///
    /// # Errors
    /// [`EncoderError::NoEmbedding`], and [`EncoderError::Tokenizer`] for a tokenizer that is not supported.
    pub fn new(graph: AdmittedGraph) -> Result<TextEncoder, EncoderError> {
        let entry = graph.entry();
        let missing = || EncoderError::NoEmbedding { graph: entry.id.clone() };
        let embedding = entry.embedding.clone().ok_or_else(missing)?;
        let tokenizer = Tokenizer::from_hf_json(graph.tokenizer().ok_or_else(missing)?)?;
        // The manifest's rules hold the first output to a fixed width.
        let Some(Dim::Fixed(dim)) = entry.outputs.first().and_then(|output| output.shape.last())
        else {
            return Err(missing());
        };
        let dim = *dim as usize;
        Ok(TextEncoder { embedding, tokenizer, dim, graph })
    }

    /// The numbers of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The most tokens of a text, those around it included.
    pub fn max_tokens(&self) -> usize {
        self.embedding.max_tokens as usize
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of a text, with those around it.
    ///
    /// # Errors
    /// [`EncoderError::Tokenizer`], [`EncoderError::TooLong`], [`EncoderError::Empty`].
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, EncoderError> {
        let tokens = self.tokenizer.encode(text, true)?;
        self.check(&tokens)?;
        Ok(tokens)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), EncoderError> {
        match tokens.len() {
            0 => Err(EncoderError::Empty),
            n if n > self.max_tokens() => {
                Err(EncoderError::TooLong { tokens: n, most: self.max_tokens() })
            }
            _ => Ok(()),
        }
    }

    /// The vector of a text's tokens, for whoever waits for it.
    ///
    /// # Errors
    /// [`EncoderError::TooLong`], [`EncoderError::Empty`], [`EncoderError::Graph`].
    pub fn embed(
        &self,
        tokens: &[u32],
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<f32>, EncoderError> {
        self.check(tokens)?;
        let entry = self.graph.entry();
        let mut context = self.graph.graph().context()?;
        for (index, input) in entry.inputs.iter().enumerate() {
            let number = |token: u32| match input.name.as_str() {
                name if name == EMBEDDING_INPUTS[0] => i64::from(token),
                name if name == EMBEDDING_INPUTS[1] => 1,
                _ => 0,
            };
            let numbers = tokens.iter().map(|token| number(*token));
            let bytes: Vec<u8> = match input.ty {
                GraphType::I32 => numbers.flat_map(|n| (n as i32).to_le_bytes()).collect(),
                _ => numbers.flat_map(i64::to_le_bytes).collect(),
            };
            let wrong =
                || GraphError::Input { name: input.name.clone(), reason: "its type".into() };
            let value = GraphValue::new(input.ty, vec![1, tokens.len()], bytes);
            context.set_input(index, value.ok_or_else(wrong)?)?;
        }
        context.compute(waited_for)?;
        let rows = context.output(0)?.to_f32().unwrap_or_default();
        let mut vector = self
            .pool(&rows)
            .ok_or_else(|| GraphError::Failed { reason: "it gave no vector".to_owned() })?;
        if self.embedding.normalize {
            unit_length(&mut vector);
        }
        Ok(vector)
    }

    /// One row of all, or `None` where there is none or a number that is not finite.
    fn pool(&self, rows: &[f32]) -> Option<Vec<f32>> {
        let mut each = rows.chunks_exact(self.dim);
        let vector = match self.embedding.pooling {
            Pooling::Cls | Pooling::None => each.next()?.to_vec(),
            Pooling::Last => each.next_back()?.to_vec(),
            Pooling::Mean => {
                let count = each.len();
                let mut sums = vec![0f64; self.dim];
                for row in each {
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                (count > 0).then(|| sums.iter().map(|sum| (sum / count as f64) as f32).collect())?
            }
        };
        vector.iter().all(|x| x.is_finite()).then_some(vector)
    }
}
