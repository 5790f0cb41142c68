//! Which version of a block a query reads.
//!
//! It follows from two block numbers alone, the query's and the key's: the codec that the policy has for as many
//! tokens as lie between. So a prompt that is computed at once reads what it would read token by token: until a step
//! settles, a block that grows old in it exists in every codec that one of its queries wants ([`BlockVersion`]). Each
//! version is packed from the one before it, as blocks are that grow old from step to step.
//!
//! So a hit in the prefix cache ends where a query right behind it has the bits that it wants in all blocks before, and
//! of a sequence that was cut off, blocks are computed again from such a place on. Were all blocks packed in place as
//! they grow old, that would be the beginning of the text. So there are *checkpoints* where texts are expected to part:
//! the end of a prompt, and where one was seen to part from another. The blocks before one stay in the prefix cache as
//! queries right behind it read them, and sequences that go on get packed copies.
//!
//! One thing is left that gives a query fewer bits: packing under pressure of memory (`reclaim`), which
//! `KvStats::packed_early` counts. Deterministic engines do without.

use std::time::Instant;

use super::block::{Codecs, Half, Side};
use super::packing::Packed;
use super::prefix;
use super::recode::Packer;
use super::store::{BlockLocation, KvKernels, KvStore, copy_side};
use super::stored::{Stored, segment};
use super::table::{BlockId, BlockRef, BlockVersion, KvTable};
use crate::error::EngineError;
use crate::kv_policy::KvTiers;
use ruvllm_native::attention::KvSegment;

/// Positions that some queries see.
#[derive(Clone, Copy)]
pub(crate) struct AttendedPositions {
    /// The first that any of them sees.
    pub(crate) first: usize,
    /// That of the first query, and the end of theirs.
    pub(crate) from: usize,
    pub(crate) end: usize,
}

impl KvTable {
    /// How many queries from position `from` on read the same versions of all blocks.
    pub(crate) fn run(&self, from: usize) -> usize {
        let changes =
            self.versions.iter().map(|version| version.from).filter(|change| *change > from);
        changes.min().map_or(usize::MAX, |change| change - from)
    }
}

impl KvStore {
    /// The position of the first token of a block.
    fn block_start(&self, position: usize) -> usize {
        position / self.shape.tokens * self.shape.tokens
    }

    /// The codecs in which queries at positions from `from` on, to the end of their block, read a full block
    /// that ends at `end`.
    fn wanted(&self, end: usize, from: usize) -> Codecs {
        let age = self.block_start(from).saturating_sub(end);
        Codecs::new(&self.policy, |tiers| tiers.at(age))
    }

    /// The codecs of a block in memory or on disk.
    pub(super) fn codecs(&self, id: BlockId) -> Option<Codecs> {
        match &self.blocks[id.0 as usize].location {
            BlockLocation::Memory(stored) => Some(stored.codecs()),
            BlockLocation::Disk(spilled) => Some(spilled.codecs()),
            BlockLocation::Vacant | BlockLocation::Gone => None,
        }
    }

    /// The codecs that a sequence's block has to be put in for queries at position `from`, if it does.
    pub(super) fn due(&self, entry: &BlockRef, from: usize) -> Option<Codecs> {
        if entry.len < self.shape.tokens || entry.end() > from {
            return None;
        }
        let BlockLocation::Memory(stored) = &self.blocks[entry.id.0 as usize].location else {
            return None;
        };
        let wanted = self.wanted(entry.end(), from);
        // Never to more bits: what was given up under pressure does not come back.
        (wanted.bytes(&self.shape) < stored.codecs().bytes(&self.shape)).then_some(wanted)
    }

    /// How many tokens follow a block that no query reads in fewer bits any more.
    pub(super) fn young(&self) -> usize {
        self.policy.keys.young().max(self.policy.values.young())
    }

    /// How many of these blocks, given by their ends, can stand before what is computed next: a query right behind the
    /// last has the bits that it wants in all of them.
    pub(super) fn exact(&self, blocks: &[(usize, Codecs)]) -> usize {
        let is_exact = |count: &usize| {
            let blocks = &blocks[..*count];
            let Some(&(from, _)) = blocks.last() else { return true };
            // The newest come first: they want the most bits.
            let mut blocks = blocks.iter().rev();
            blocks.all(|&(end, codecs)| !codecs.has_fewer_bits(self.wanted(end, from)))
        };
        (0..=blocks.len()).rev().find(is_exact).unwrap_or_default()
    }

    /// Lets go of the end of a sequence that was shortened where what is computed next would read fewer bits than it
    /// wants. A deterministic sequence is always looked at; another may go on with what was packed under pressure.
    pub(crate) fn keep_exact(&self, table: &mut KvTable) {
        let looked_at = self.deterministic || table.shortened;
        // What follows a gap was computed with what is forgotten.
        if !looked_at || !self.policy.migrates() || table.evicted.len > 0 {
            return;
        }
        let appended = Some(Codecs::new(&self.policy, KvTiers::appended));
        if let Some(last) = table.entries.last().filter(|entry| entry.len < self.shape.tokens)
            && self.codecs(last.id) != appended
        {
            table.uncompute(last.start);
        }
        let blocks = table.entries.iter();
        let blocks = blocks.map(|entry| Some((entry.end(), self.codecs(entry.id)?)));
        if let Some(blocks) = blocks.collect::<Option<Vec<_>>>() {
            let exact = &blocks[..self.exact(&blocks)];
            table.uncompute(exact.last().map_or(0, |&(end, _)| end));
            table.shortened = false;
        }
    }

    /// Gives a sequence that goes on to `end` the versions in which its queries will read its blocks.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`].
    pub(super) fn make_versions(
        &mut self,
        table: &mut KvTable,
        end: usize,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        table.versions.clear();
        if !self.policy.migrates() || end == table.computed {
            return Ok(());
        }
        let tokens = self.shape.tokens;
        let (first, last) = (self.block_start(table.computed), self.block_start(end - 1));
        if first == last && table.computed > first {
            // All was put in order when the block was begun.
            return Ok(());
        }
        let young = self.young();
        let oldest = Codecs::new(&self.policy, KvTiers::oldest);
        for index in 0..table.entries.len() {
            self.take_packed(table, index, first);
            let entry = table.entries[index].clone();
            // Through every codec that it would have had by now, since each is packed from the one before.
            let full = entry.end().next_multiple_of(tokens);
            let until = last.min(full + young + tokens);
            let mut stored = self.codecs(entry.id).filter(|now| *now != oldest);
            for from in (full..=until).step_by(tokens) {
                let (Some(due), Some(now)) = (self.due(&entry, from), stored) else { continue };
                if due.bytes(&self.shape) >= now.bytes(&self.shape) {
                    continue;
                }
                let mut sides = [None, None];
                for (half, side) in Half::BOTH.into_iter().zip(&mut sides) {
                    if now.of(half) != due.of(half) {
                        *side = Some(self.room_for(due, half, kv_kernels)?);
                    }
                }
                let from = from.max(first);
                table.versions.push(BlockVersion { entry: index, from, codecs: due, sides });
                stored = Some(due);
            }
        }
        Ok(())
    }

    /// Memory for a side of a block, made free if need be.
    fn room_for(
        &mut self,
        codecs: Codecs,
        half: Half,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<Side, EngineError> {
        let codec = codecs.of(half);
        let needed = self.shape.layers * self.shape.slot(codec);
        self.leased(needed, |store| store.lease_side(codec), kv_kernels)
    }

    /// Packs one half of a layer of a sequence's versions.
    pub(super) fn pack_versions(
        &mut self,
        table: &mut KvTable,
        layer: usize,
        half: Half,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        if table.versions.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let shape = self.shape;
        for index in 0..table.versions.len() {
            let (before, rest) = table.versions.split_at_mut(index);
            let Some(BlockVersion { entry, sides, .. }) = rest.first_mut() else { break };
            let Some(to) = &mut sides[half as usize] else { continue };
            let BlockRef { id, start, .. } = table.entries[*entry];
            let block = &self.blocks[id.0 as usize];
            let BlockLocation::Memory(stored) = &block.location else {
                return Err(EngineError::KvBlockMissing { position: start });
            };
            let earlier = before.iter().rev().take_while(|version| version.entry == *entry);
            let mut earlier = earlier.filter_map(|version| version.sides[half as usize].as_ref());
            let from = earlier.next().unwrap_or(stored.side(half));
            let KvKernels { kernels, pool } = &mut *kv_kernels;
            let (scope, scratch) = (table.isolation, &mut self.scratch);
            let mut packer = Packer { kernels, pool, scope, scratch };
            packer.recode_layer(&shape, layer, block.tokens, from, to)?;
        }
        self.stats.migration_ns += started.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// What attention reads of a sequence in a layer for some queries, which all read the same versions
    /// ([`KvTable::run`]).
    ///
    /// # Errors
    /// [`EngineError::KvBlockMissing`]; never after [`KvStore::restore`].
    pub(crate) fn segments<'a>(
        &'a self,
        table: &'a KvTable,
        layer: usize,
        AttendedPositions { first, from, end }: AttendedPositions,
        segments: &mut Vec<KvSegment<'a>>,
    ) -> Result<(), EngineError> {
        let first = table.entries.partition_point(|entry| entry.end() <= first);
        let until = table.entries.partition_point(|entry| entry.start < end);
        let mut versions = table.versions.as_slice();
        for (index, entry) in table.entries.iter().enumerate().take(until).skip(first) {
            let &BlockRef { id, start, len, .. } = entry;
            let BlockLocation::Memory(stored) = &self.blocks[id.0 as usize].location else {
                return Err(EngineError::KvBlockMissing { position: start });
            };
            versions = &versions[versions.partition_point(|version| version.entry < index)..];
            let mut sides = Half::BOTH.map(|half| stored.side(half));
            let own = versions
                .iter()
                .take_while(|version| version.entry == index && version.from <= from);
            for version in own {
                for (side, changed) in sides.iter_mut().zip(&version.sides) {
                    *side = changed.as_ref().unwrap_or(*side);
                }
            }
            segments.push(segment(&self.shape, layer, start, len, sides));
        }
        Ok(())
    }

    /// Puts the last versions of a step in the place of its blocks.
    pub(super) fn adopt_versions(
        &mut self,
        table: &mut KvTable,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        let mut versions = std::mem::take(&mut table.versions);
        for entry in versions.chunk_by_mut(|a, b| a.entry == b.entry) {
            let mut fresh = [None, None];
            let Some(&BlockVersion { entry: index, codecs, .. }) = entry.last() else {
                continue;
            };
            for version in entry {
                for (fresh, side) in fresh.iter_mut().zip(&mut version.sides) {
                    *fresh = side.take().or(fresh.take());
                }
            }
            self.replace(table, index, codecs, fresh, kv_kernels)?;
            self.stats.migrations += 1;
        }
        versions.clear();
        table.versions = versions;
        Ok(())
    }

    /// Puts a sequence's block in other codecs, or a copy of it where others see it, if there is room for both; gives
    /// whether there was. What was written ahead of time for these codecs is put in place, else the block is
    /// written anew here.
    pub(super) fn migrate(
        &mut self,
        table: &mut KvTable,
        index: usize,
        codecs: Codecs,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<bool, EngineError> {
        let id = table.entries[index].id;
        let Some(Packed { sides, ahead }) = self.packed(id, codecs, kv_kernels)? else {
            return Ok(false);
        };
        self.replace(table, index, codecs, sides, kv_kernels)?;
        self.stats.migrations += 1;
        self.stats.migrations_ahead += u64::from(ahead);
        Ok(true)
    }

    /// Puts other sides in the place of a block's, or of a sequence's own copy of it where others see it or may look for
    /// it at a checkpoint.
    pub(super) fn replace(
        &mut self,
        table: &mut KvTable,
        index: usize,
        codecs: Codecs,
        fresh: [Option<Side>; 2],
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        let id = table.entries[index].id;
        let block = &self.blocks[id.0 as usize];
        let in_place = block.refs == 1 && !block.checkpoint;
        if in_place {
            self.put(id, fresh);
        } else {
            let mut sides = fresh;
            for (half, side) in Half::BOTH.into_iter().zip(&mut sides) {
                if side.is_none() {
                    let mut copy = self.room_for(codecs, half, kv_kernels)?;
                    if let BlockLocation::Memory(stored) = &self.blocks[id.0 as usize].location {
                        copy_side(stored.side(half), &mut copy);
                    }
                    *side = Some(copy);
                }
            }
            let [Some(keys), Some(values)] = sides else { return Ok(()) };
            self.exchange(table, index, Stored::new(keys, values));
        }
        let BlockRef { id, key, .. } = table.entries[index];
        let block = &mut self.blocks[id.0 as usize];
        // A block keeps the key of its tokens whatever its codecs. That of a copy names them.
        if let Some(key) = key.filter(|key| block.key.map_or(!in_place, |own| own != *key)) {
            if let Some(outdated) = block.key.take() {
                self.index.remove(&outdated);
            }
            let key = prefix::packed(&key, codecs);
            self.index.entry(key).or_insert_with(|| {
                block.key = Some(key);
                id
            });
        }
        Ok(())
    }

    /// Has a sequence refer to what another has packed of a block, where it is due for queries at position `from` and not
    /// to be packed in place.
    pub(super) fn take_packed(&mut self, table: &mut KvTable, index: usize, from: usize) -> bool {
        let entry = &table.entries[index];
        let (id, key) = (entry.id, entry.key);
        let block = &self.blocks[id.0 as usize];
        let in_place = block.refs == 1 && !block.checkpoint && block.key == key;
        let due = self.due(entry, from).filter(|_| !in_place);
        let packed = due.zip(key).and_then(|(codecs, key)| {
            let packed = *self.index.get(&prefix::packed(&key, codecs))?;
            let location = &self.blocks[packed.0 as usize].location;
            // Under pressure it may have been packed further.
            matches!(location, BlockLocation::Memory(stored) if stored.codecs() == codecs)
                .then_some(packed)
        });
        let Some(packed) = packed else { return false };
        let block = &mut self.blocks[packed.0 as usize];
        block.refs += 1;
        block.used = self.clock;
        block.priority = block.priority.max(table.options.priority);
        table.entries[index].id = packed;
        self.release(id);
        true
    }
}
