//! candle's `quantized_llama`, as in its example.

use super::Peer;
use crate::Failure;
use crate::protocol::{Kv, Request};
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::{MAX_SEQ_LEN, ModelWeights};
use std::fs::File;

pub(crate) struct Candle {
    model: ModelWeights,
    /// The model after the first prefill: a copy shares its tensors, those of the cache too.
    filled: Option<(ModelWeights, usize)>,
    sequences: usize,
    /// Tokens in each sequence.
    len: usize,
}

impl Candle {
    /// The number of threads is that of rayon's pool, which the parent sets in the environment.
    pub(crate) fn load(request: &Request) -> Result<Candle, Failure> {
        if request.kv != Kv::F16 {
            return Err("its cache is f32 and has no other type".into());
        }
        let mut file = File::open(&request.model)?;
        let content = Content::read(&mut file)?;
        let model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
        Ok(Candle { model, filled: None, sequences: 0, len: 0 })
    }

    fn forward(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        let input = Tensor::new(tokens, &Device::Cpu)?.reshape((1, tokens.len()))?;
        let input = input.repeat((self.sequences, 1))?;
        self.model.forward(&input, self.len)?;
        self.len += tokens.len();
        Ok(())
    }
}

impl Peer for Candle {
    fn open(&mut self, sequences: usize, context: usize) -> Result<(), Failure> {
        if context > MAX_SEQ_LEN {
            return Err(format!("its context is {MAX_SEQ_LEN} tokens").into());
        }
        self.model.clear_kv_cache();
        (self.filled, self.sequences, self.len) = (None, sequences, 0);
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        self.forward(tokens)?;
        if self.filled.is_none() {
            self.filled = Some((self.model.clone(), self.len));
        }
        Ok(())
    }

    fn decode(&mut self, token: u32) -> Result<(), Failure> {
        self.forward(&[token])
    }

    fn truncate(&mut self, len: usize) -> Result<(), Failure> {
        match &self.filled {
            Some((model, filled)) if *filled == len => self.model = model.clone(),
            _ if len == 0 => self.model.clear_kv_cache(),
            _ => return Err(format!("its cache cannot go back to {len} tokens").into()),
        }
        self.len = len;
        Ok(())
    }
}
