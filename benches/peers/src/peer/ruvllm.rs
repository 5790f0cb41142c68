//! ruvllm through its Rust API, set up as `ruvllm bench` does by default.

use super::Peer;
use crate::Failure;
use crate::protocol::{Kv, Request};
use ruvllm::engine::Session;
use ruvllm::host::{HostConfig, Policy};
use ruvllm::{KernelSet, KvType, Runtime};

pub(crate) struct Ruvllm {
    runtime: Runtime,
    session: Option<Session>,
}

impl Ruvllm {
    /// `policy` says whether kernels run in the sandbox or as their native twins.
    pub(crate) fn load(request: &Request, policy: Policy) -> Result<Ruvllm, Failure> {
        let config =
            HostConfig { policy, cache_dir: ruvllm::default_cache_dir(), ..HostConfig::default() };
        let kv = match request.kv {
            Kv::F16 => KvType::F16,
            Kv::Q8_0 => KvType::Q8_0,
        };
        let runtime = Runtime::builder()
            .model(&request.model)
            .kernels(KernelSet::builder().config(config))
            .threads(request.threads)
            .kv(kv)
            .build()?;
        Ok(Ruvllm { runtime, session: None })
    }

    fn opened(&mut self) -> Result<&mut Session, Failure> {
        self.session.as_mut().ok_or_else(|| "no sequence is open".into())
    }
}

impl Peer for Ruvllm {
    fn open(&mut self, sequences: usize, _context: usize) -> Result<(), Failure> {
        if sequences != 1 {
            return Err("it computes one sequence at a time".into());
        }
        // The old cache first: two need not fit.
        self.session = None;
        self.session = Some(self.runtime.engine().session()?);
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        self.opened()?.prefill(tokens)?;
        Ok(())
    }

    fn decode(&mut self, token: u32) -> Result<(), Failure> {
        self.opened()?.decode(token)?;
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> Result<(), Failure> {
        self.opened()?.truncate(len);
        Ok(())
    }
}
