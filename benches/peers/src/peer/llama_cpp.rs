//! llama.cpp, set up as llama-bench does by default.

use super::Peer;
use crate::Failure;
use crate::protocol::{Kv, Request};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use std::num::NonZeroU32;

/// llama-bench's `-b` and `-ub`.
const BATCH: u32 = 2048;
const MICRO_BATCH: u32 = 512;

pub(crate) struct LlamaCpp {
    open: Option<Open>,
    model: &'static LlamaModel,
    threads: i32,
    kv: KvCacheType,
    backend: LlamaBackend,
}

/// A context with its sequences.
struct Open {
    context: LlamaContext<'static>,
    batch: LlamaBatch<'static>,
    sequences: usize,
    /// Tokens in each sequence.
    len: usize,
}

impl LlamaCpp {
    pub(crate) fn load(request: &Request) -> Result<LlamaCpp, Failure> {
        send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
        let backend = LlamaBackend::init()?;
        let params = LlamaModelParams::default();
        let model = LlamaModel::load_from_file(&backend, &request.model, &params)?;
        let kv = match request.kv {
            Kv::F16 => KvCacheType::F16,
            Kv::Q8_0 => KvCacheType::Q8_0,
        };
        // Contexts borrow the model; both live as long as the process, which has one of each.
        let model = Box::leak(Box::new(model));
        Ok(LlamaCpp { open: None, model, threads: request.threads.try_into()?, kv, backend })
    }

    fn opened(&mut self) -> Result<&mut Open, Failure> {
        self.open.as_mut().ok_or_else(|| "no sequence is open".into())
    }
}

impl Peer for LlamaCpp {
    fn open(&mut self, sequences: usize, context: usize) -> Result<(), Failure> {
        // The old context first: two caches need not fit.
        self.open = None;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new((sequences * context).try_into()?))
            .with_n_seq_max(sequences.try_into()?)
            .with_n_batch(BATCH)
            .with_n_ubatch(MICRO_BATCH)
            .with_n_threads(self.threads)
            .with_n_threads_batch(self.threads)
            .with_type_k(self.kv)
            .with_type_v(self.kv);
        let context = self.model.new_context(&self.backend, params)?;
        let batch = LlamaBatch::new((BATCH as usize).max(sequences), 1);
        self.open = Some(Open { context, batch, sequences, len: 0 });
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        let Open { context, batch, sequences, len } = self.opened()?;
        for chunk in tokens.chunks(BATCH as usize) {
            batch.clear();
            for (i, &token) in chunk.iter().enumerate() {
                let position = (*len + i).try_into()?;
                batch.add(token_id(token)?, position, &[0], i + 1 == chunk.len())?;
            }
            context.decode(batch)?;
            *len += chunk.len();
        }
        for sequence in 1..*sequences {
            context.copy_kv_cache_seq(0, sequence.try_into()?, None, None)?;
        }
        context.synchronize();
        Ok(())
    }

    fn decode(&mut self, token: u32) -> Result<(), Failure> {
        let Open { context, batch, sequences, len } = self.opened()?;
        batch.clear();
        for sequence in 0..*sequences {
            batch.add(token_id(token)?, (*len).try_into()?, &[sequence.try_into()?], true)?;
        }
        context.decode(batch)?;
        context.synchronize();
        *len += 1;
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> Result<(), Failure> {
        let open = self.opened()?;
        open.context.clear_kv_cache_seq(None, Some(len.try_into()?), None)?;
        open.len = len;
        Ok(())
    }
}

fn token_id(token: u32) -> Result<LlamaToken, Failure> {
    Ok(LlamaToken::new(token.try_into()?))
}
