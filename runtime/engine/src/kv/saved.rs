//! A sequence on disk: its tokens and blocks in a sealed file, for another day.
//!
//! The header says what the numbers are worth: the model and its adapter, how blocks are stored, and
//! which kernels wrote them. After it come the tokens, and the blocks in order. What was computed by other kernels
//! than those of the moment, or by other code of the host's, is within their tolerance, so it is taken; but it does
//! not enter the prefix index, and a deterministic engine computes it anew.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::block::Codecs;
use super::spill::{read_block, write_block};
use super::store::{BlockLocation, KvKernels, KvStore};
use super::table::{BlockRef, EvictedRange, KvTable, SequenceOptions};
use crate::adapter::Adapter;
use crate::error::{EngineError, short_hash};
use crate::kv_policy::{KvCodec, KvTiers};
use crate::sealed::{SealedError, SealedReader, SealedWriter, SessionKey, write_atomically};

const PURPOSE: &str = "session";

/// Tokens of a chunk.
const TOKENS: usize = 1 << 20;

/// What a file holds, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    model: [u8; 32],
    policy: String,
    block_tokens: usize,
    kernels: [u8; 32],
    /// How the host's own code computed; empty in files of before this was kept.
    #[serde(default)]
    code: String,
    /// The fingerprint of the sequence's adapter.
    #[serde(default)]
    adapter: Option<[u8; 32]>,
    tokens: usize,
    gap: EvictedRange,
    blocks: Vec<SavedBlock>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBlock {
    tokens: usize,
    keys: u8,
    values: u8,
}

impl KvStore {
    /// Writes a sequence whose blocks are all in memory.
    ///
    /// # Errors
    /// [`EngineError::Sealed`].
    pub(crate) fn save(
        &self,
        table: &KvTable,
        path: &Path,
        key: &SessionKey,
    ) -> Result<(), EngineError> {
        let stored = table.entries.iter().filter_map(|entry| {
            match &self.blocks[entry.id.0 as usize].location {
                BlockLocation::Memory(stored) => Some((entry, stored)),
                _ => None,
            }
        });
        let blocks = stored.clone().map(|(entry, stored)| {
            let Codecs { keys, values } = stored.codecs();
            SavedBlock { tokens: entry.len, keys: keys.id(), values: values.id() }
        });
        let header = Header {
            model: self.model,
            policy: self.policy.to_string(),
            block_tokens: self.shape.tokens,
            kernels: self.kernels(table),
            code: self.code.clone(),
            adapter: table.options.adapter.as_ref().map(Adapter::fingerprint),
            tokens: table.len(),
            gap: table.evicted,
            blocks: blocks.collect(),
        };
        let refused = |source: serde_json::Error| EngineError::Sealed {
            path: path.to_owned(),
            source: SealedError::Write { source: source.into() },
        };
        let header = serde_json::to_vec(&header).map_err(refused)?;
        write_atomically(path, |file| {
            let mut sealed = SealedWriter::new(file, key, PURPOSE, &header)?;
            for tokens in table.tokens.chunks(TOKENS) {
                let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
                sealed.chunk(&bytes)?;
            }
            let mut buffer = Vec::new();
            for (_, stored) in stored {
                write_block(&mut sealed, stored, &self.shape, &mut buffer)?;
            }
            sealed.finish().map(drop)
        })
    }

    /// Reads a sequence of at most `context` tokens, each below `vocab`.
    ///
    /// # Errors
    /// [`EngineError::Sealed`], [`EngineError::SessionMismatch`] and
    /// [`EngineError::MemoryExhausted`].
    pub(crate) fn load(
        &mut self,
        path: &Path,
        key: &SessionKey,
        options: SequenceOptions,
        (context, vocab): (usize, usize),
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<KvTable, EngineError> {
        let unsealed = |source| EngineError::Sealed { path: path.to_owned(), source };
        let read = |source| unsealed(SealedError::Read { source });
        let file = BufReader::new(File::open(path).map_err(read)?);
        let (sealed, header) = SealedReader::open(file, key, PURPOSE).map_err(unsealed)?;
        // Opening chunks is what takes the time.
        let mut sealed = sealed.with_threads(kv_kernels.pool.threads());
        let damaged = || unsealed(SealedError::Damaged);
        let header: Header = serde_json::from_slice(&header).map_err(|_| damaged())?;
        let mut table = self.table(context, options);
        self.check(path, &header, &table)?;
        table.evicted = header.gap;
        let mut buffer = Vec::new();
        while table.tokens.len() < header.tokens {
            if !sealed.chunk(&mut buffer).map_err(unsealed)? || buffer.is_empty() {
                return Err(damaged());
            }
            let tokens = buffer.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
            table.tokens.extend(tokens);
        }
        if table.len() != header.tokens || table.tokens.iter().any(|&t| t as usize >= vocab) {
            return Err(damaged());
        }
        let shape = self.shape;
        for SavedBlock { tokens, keys, values } in header.blocks {
            let codecs = KvCodec::from_id(keys).zip(KvCodec::from_id(values));
            let codecs = codecs.map(|(keys, values)| Codecs { keys, values });
            let codecs = codecs.filter(|codecs| self.stores(*codecs)).ok_or_else(damaged)?;
            if tokens == 0 || tokens > shape.tokens || table.computed + tokens > table.len() {
                return Err(damaged());
            }
            let mut stored = self.room(codecs, kv_kernels)?;
            read_block(&mut sealed, &shape, &mut stored, &mut buffer).map_err(unsealed)?;
            let id = self.add(stored, &table);
            // A block by channel was full when it was written, however short it was cut since.
            let full = codecs.keys.by_channel();
            self.blocks[id.0 as usize].tokens = if full { shape.tokens } else { tokens };
            table.entries.push(BlockRef { id, start: table.computed, len: tokens, key: None });
            table.computed += tokens;
        }
        if sealed.chunk(&mut buffer).map_err(unsealed)? {
            return Err(damaged());
        }
        if header.kernels == self.kernels(&table) && header.code == self.code {
            self.publish(&mut table);
        } else if self.deterministic && table.evicted.len == 0 {
            table.uncompute(0);
        } else {
            // No block that follows can have a key either.
            table.options.scope = None;
        }
        Ok(table)
    }

    /// Whether a policy of this engine stores blocks so.
    fn stores(&self, codecs: Codecs) -> bool {
        let stores = |tiers: &KvTiers, codec| tiers.stored().any(|stored| stored == codec);
        stores(&self.policy.keys, codecs.keys) && stores(&self.policy.values, codecs.values)
    }

    fn check(&self, path: &Path, header: &Header, table: &KvTable) -> Result<(), EngineError> {
        let mismatch = |what: &'static str, saved: String, here: String| {
            Err(EngineError::SessionMismatch { path: path.to_owned(), what, saved, here })
        };
        let short = |hash: [u8; 32]| short_hash(&hash);
        if header.model != self.model {
            return mismatch("model", short(header.model), short(self.model));
        }
        let adapter = table.options.adapter.as_ref().map(Adapter::fingerprint);
        if header.adapter != adapter {
            let short = |adapter: Option<_>| adapter.map_or_else(|| "none".to_owned(), short);
            return mismatch("adapter", short(header.adapter), short(adapter));
        }
        if header.policy != self.policy.to_string() {
            return mismatch("KV policy", header.policy.clone(), self.policy.to_string());
        }
        if header.block_tokens != self.shape.tokens {
            let (saved, here) = (header.block_tokens, self.shape.tokens);
            return mismatch("tokens of a KV block", saved.to_string(), here.to_string());
        }
        if header.tokens > table.context() {
            return mismatch(
                "number of tokens",
                header.tokens.to_string(),
                format!("at most {}", table.context()),
            );
        }
        Ok(())
    }
}
