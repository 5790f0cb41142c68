//! The policy `fastest`, for team operations: candidates race when a model is loaded.
//!
//! The weights of a model are prepared by one provider, so which one it is has to be known before any call. Results are
//! kept in a file beside the cache of machine code and hold for the same candidates, by hash, on the same
//! processor and host version; anything else is raced anew. Every candidate has been admitted before, so a
//! forged result can cost time and nothing else. Of other operations live calls tell: see [`super::learn`].

use super::kernel::PublishedKernel;
use crate::{HostConfig, OpKey, files};
use ruvllm_abi::TeamOp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Classes of numbers of rows: class `n` holds calls of less than 2^n rows, the last one all larger ones.
const CLASSES: usize = 33;
/// A longer file is none of ours.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Rows that providers of team operations race with: as a token that is written, and as a prompt.
pub(crate) const TEAM_ROWS: [usize; 2] = [1, 32];

/// The class of a call of so many rows.
pub(crate) fn class(rows: usize) -> usize {
    ((usize::BITS - rows.leading_zeros()) as usize).min(CLASSES - 1)
}

/// Who won among the candidates of one operation, by class.
pub(crate) struct Race([AtomicU8; CLASSES]);

impl Race {
    /// The index in the chain of the winner; `None` before the race.
    #[inline]
    pub(crate) fn winner(&self, class: usize) -> Option<usize> {
        usize::from(self.0[class].load(Relaxed)).checked_sub(1)
    }

    fn set(&self, class: usize, winner: usize) {
        // Chains are shorter than 255; were one longer, its tail could not win.
        self.0[class].store(u8::try_from(winner + 1).unwrap_or(0), Relaxed);
    }
}

/// Results of races, of this run and of earlier ones.
pub(crate) struct Records {
    path: Option<PathBuf>,
    document: Mutex<Document>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    host: String,
    ops: BTreeMap<String, OpRecord>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpRecord {
    /// Hashes of the candidates in the order of the chain.
    candidates: Vec<String>,
    /// Nanoseconds of a call by class, in the order of the chain; absent for one that failed.
    classes: BTreeMap<usize, Vec<Option<u64>>>,
}

impl Records {
    /// Reads the results of earlier runs; those of another host are dropped.
    pub(crate) fn open(directory: Option<&Path>, config: &HostConfig) -> Self {
        let path = directory.map(|directory| directory.join("fastest.json"));
        let host = host(config);
        let read = path.as_deref().and_then(read);
        let document = read.filter(|document| document.version == 1 && document.host == host);
        let document = document.unwrap_or(Document { version: 1, host, ops: BTreeMap::new() });
        Self { path, document: Mutex::new(document) }
    }

    /// The race of an operation, with the winners that are known.
    pub(crate) fn race(&self, key: &OpKey, chain: &[Arc<PublishedKernel>]) -> Race {
        let race = Race(std::array::from_fn(|_| AtomicU8::new(0)));
        let document = self.lock();
        if let Some(record) = document.ops.get(&key.to_string())
            && record.candidates == hashes(chain)
        {
            for (&class, times) in record.classes.range(..CLASSES) {
                if let Some(winner) = fastest(times).filter(|&winner| winner < chain.len()) {
                    race.set(class, winner);
                }
            }
        }
        race
    }

    /// Books the times of a race, in the order of the chain. The file is written at once: races are few.
    pub(crate) fn finish(
        &self,
        key: &OpKey,
        chain: &[Arc<PublishedKernel>],
        race: &Race,
        class: usize,
        times: &[Option<Duration>],
    ) {
        let times: Vec<Option<u64>> =
            times.iter().map(|time| time.map(|time| time.as_nanos() as u64)).collect();
        race.set(class, fastest(&times).unwrap_or(0));
        let mut document = self.lock();
        let record = document.ops.entry(key.to_string()).or_default();
        let candidates = hashes(chain);
        if record.candidates != candidates {
            *record = OpRecord { candidates, classes: BTreeMap::new() };
        }
        record.classes.insert(class, times);
        // What cannot be kept is raced again by the next run.
        if let Some(path) = &self.path
            && let Ok(text) = serde_json::to_vec_pretty(&*document)
        {
            let _ = files::replace(path, &[&text]);
        }
    }

    /// A sentence for each class that was raced.
    pub(crate) fn explain(&self, key: &OpKey, chain: &[Arc<PublishedKernel>]) -> Vec<String> {
        let document = self.lock();
        let record =
            document.ops.get(&key.to_string()).filter(|record| record.candidates == hashes(chain));
        let Some(record) = record else { return Vec::new() };
        let sentence = |(class, times): (&usize, &Vec<Option<u64>>)| {
            let mut ranked: Vec<_> = times
                .iter()
                .zip(chain)
                .filter_map(|(time, kernel)| Some(((*time)?, kernel.id())))
                .collect();
            ranked.sort_unstable();
            let ranked: Vec<String> = ranked
                .iter()
                .map(|(nanos, id)| format!("{id} {:.2} us", *nanos as f64 / 1e3))
                .collect();
            let rows = 1usize << class.saturating_sub(1);
            let what = match key.team() {
                Some(TeamOp::Matmul) => format!("products of {rows} rows"),
                Some(TeamOp::Embed) => format!("embeddings of {rows} tokens"),
                Some(TeamOp::Attention) => format!("attention of {rows} queries"),
                None => format!("calls of {rows} rows"),
            };
            format!("{what}: {}", ranked.join(", "))
        };
        record.classes.iter().map(sentence).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Document> {
        self.document.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of the least time.
fn fastest(times: &[Option<u64>]) -> Option<usize> {
    let timed = times.iter().enumerate().filter_map(|(i, time)| Some(((*time)?, i)));
    timed.min().map(|(_, i)| i)
}

fn hashes(chain: &[Arc<PublishedKernel>]) -> Vec<String> {
    chain.iter().map(|kernel| kernel.hash().to_owned()).collect()
}

/// What results depend on beside the candidates.
pub(super) fn host(config: &HostConfig) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{} on {} ({}, {}, {cores} cores), kernels on {}",
        env!("CARGO_PKG_VERSION"),
        processor(),
        std::env::consts::ARCH,
        config.isa.usable().name(),
        config.executors().iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
    )
}

/// The processor's name where the system gives one.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        ["model name", "CPU part"].contains(&field.trim()).then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| "an unnamed processor".to_owned())
}

fn read(path: &Path) -> Option<Document> {
    serde_json::from_slice(&files::read_small(path, MAX_FILE_BYTES).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 7, 8].map(class), [0, 1, 2, 2, 3, 3, 4]);
        assert_eq!(class(usize::MAX), CLASSES - 1);
    }

    #[test]
    fn the_least_time_wins_and_failures_do_not() {
        assert_eq!(fastest(&[Some(3), None, Some(2)]), Some(2));
        assert_eq!(fastest(&[None, None]), None);
        assert_eq!(fastest(&[Some(1), Some(1)]), Some(0));
    }

    #[test]
    fn a_file_that_is_none_of_ours_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let config = HostConfig::default();
        for bad in ["", "{}", "[1]", r#"{"version":1,"host":"another","ops":{}}"#] {
            fs::write(dir.path().join("fastest.json"), bad).unwrap();
            let records = Records::open(Some(dir.path()), &config);
            assert_eq!(records.lock().host, host(&config));
        }
    }
}
