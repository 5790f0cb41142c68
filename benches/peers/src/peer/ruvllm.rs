//! ruvllm through its Rust API, set up as `ruvllm bench` does by default.

use super::Peer;
use crate::Failure;
use crate::protocol::{Kv, Request};
use ruvllm::engine::Session;
use ruvllm::host::{HostConfig, Policy};
use ruvllm::{KernelSet, KvCodec, Runtime, SessionOptions};
use ruvllm_native::Isa;

pub(crate) struct Ruvllm {
    runtime: Runtime,
    sessions: Vec<Session>,
}

impl Ruvllm {
    /// `policy` says whether kernels run in the sandbox or as their native twins, `twins` what those
    /// compute with, `isa` what everything else does.
    pub(crate) fn load(
        request: &Request,
        policy: Policy,
        isa: Isa,
        twins: Isa,
    ) -> Result<Ruvllm, Failure> {
        let cache_dir = ruvllm::default_cache_dir();
        let config = HostConfig { policy, isa: twins, cache_dir, ..HostConfig::default() };
        let kv = match request.kv {
            Kv::F16 => KvCodec::F16,
            Kv::Q8_0 => KvCodec::Q8_0,
        };
        let runtime = Runtime::builder()
            .model(&request.model)
            .kernels(KernelSet::builder().config(config))
            .threads(request.threads)
            .isa(isa)
            .kv(kv)
            .build()?;
        Ok(Ruvllm { runtime, sessions: Vec::new() })
    }
}

impl Peer for Ruvllm {
    fn open(&mut self, sequences: usize, _context: usize) -> Result<(), Failure> {
        // The old caches first: both need not fit.
        self.sessions.clear();
        // What one has computed, no other may find: everything that is asked for is to be measured.
        let options = SessionOptions { scope: None, ..SessionOptions::default() };
        for _ in 0..sequences {
            self.sessions.push(self.runtime.engine().session_with(&options));
        }
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        for session in &mut self.sessions {
            session.prefill(tokens)?;
        }
        Ok(())
    }

    fn decode(&mut self, token: u32) -> Result<(), Failure> {
        match &mut self.sessions[..] {
            [session] => {
                session.decode(token)?;
            }
            sessions => {
                let next = sessions.iter_mut().map(|session| (session, token));
                self.runtime.engine().decode_batch(next)?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> Result<(), Failure> {
        self.sessions.iter_mut().for_each(|session| session.truncate(len));
        Ok(())
    }

    fn in_kernels(&self) -> Option<f64> {
        let nanos: u64 = self.runtime.host().stats().iter().map(|op| op.nanos).sum();
        Some(nanos as f64 * 1e-9)
    }
}
