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

/// Classes of matrices: class `n` holds those of less than 2^n weights, the last one all larger ones. Attention is of
/// the class of the numbers of a head.
const CLASSES: usize = 33;
/// What the file's form is called.
const VERSION: u32 = 2;
/// A longer file is none of ours.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Rows that providers of team operations race with: as a token that is written, and as a prompt.
pub(crate) const TEAM_ROWS: [usize; 2] = [1, 32];

/// The least time of a candidate with each of [`TEAM_ROWS`]; `None` where it failed or could not be asked.
pub(crate) type Times = [Option<Duration>; TEAM_ROWS.len()];

/// The class of a matrix of so many weights, or of heads of so many numbers.
pub(crate) fn class(numbers: usize) -> usize {
    ((usize::BITS - numbers.leading_zeros()) as usize).min(CLASSES - 1)
}

/// Who won among the candidates of one operation, by class of matrix and number of rows.
pub(crate) struct Race([[AtomicU8; TEAM_ROWS.len()]; CLASSES]);

impl Race {
    /// The index in the chain of whoever won with about so many rows; `None` before the race.
    #[inline]
    pub(crate) fn winner(&self, class: usize, rows: usize) -> Option<usize> {
        let raced = usize::from(rows > TEAM_ROWS[0]);
        usize::from(self.0[class][raced].load(Relaxed)).checked_sub(1)
    }

    /// Whoever won some race: first with the largest matrices, and with one row.
    pub(crate) fn winners(&self) -> impl Iterator<Item = usize> {
        let classes = (0..CLASSES).rev();
        classes.flat_map(|class| TEAM_ROWS.map(|rows| self.winner(class, rows))).flatten()
    }

    fn set(&self, class: usize, winners: [usize; TEAM_ROWS.len()]) {
        for (at, winner) in self.0[class].iter().zip(winners) {
            // Chains are shorter than 255; were one longer, its tail could not win.
            at.store(u8::try_from(winner + 1).unwrap_or(0), Relaxed);
        }
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
    /// By class of matrix, in the order of the chain.
    classes: BTreeMap<usize, Vec<Nanos>>,
}

/// Nanoseconds of a call with each of [`TEAM_ROWS`].
type Nanos = [Option<u64>; TEAM_ROWS.len()];

impl Records {
    /// Reads the results of earlier runs; those of another host are dropped.
    pub(crate) fn open(directory: Option<&Path>, config: &HostConfig) -> Self {
        let path = directory.map(|directory| directory.join("fastest.json"));
        let host = host(config);
        let read = path.as_deref().and_then(read);
        let document = read.filter(|document| document.version == VERSION && document.host == host);
        let document =
            document.unwrap_or(Document { version: VERSION, host, ops: BTreeMap::new() });
        Self { path, document: Mutex::new(document) }
    }

    /// The race of an operation, with the winners that are known.
    pub(crate) fn race(&self, key: &OpKey, chain: &[Arc<PublishedKernel>]) -> Race {
        let race = Race(std::array::from_fn(|_| Default::default()));
        let document = self.lock();
        if let Some(record) = document.ops.get(&key.to_string())
            && record.candidates == hashes(chain)
        {
            for (&class, times) in record.classes.range(..CLASSES) {
                if times.len() == chain.len() {
                    race.set(class, fastest(times));
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
        times: &[Times],
    ) {
        let nanos = |time: Option<Duration>| time.map(|time| time.as_nanos() as u64);
        let times: Vec<Nanos> = times.iter().map(|times| times.map(nanos)).collect();
        race.set(class, fastest(&times));
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

    /// The races that were run, with what each candidate took.
    pub(crate) fn explain(&self, key: &OpKey, chain: &[Arc<PublishedKernel>]) -> Vec<Raced> {
        let document = self.lock();
        let record =
            document.ops.get(&key.to_string()).filter(|record| record.candidates == hashes(chain));
        let classes = record.into_iter().flat_map(|record| &record.classes);
        let raced = |(class, times): (&usize, &Vec<Nanos>), at: usize| {
            let mut ranked: Vec<_> =
                times.iter().enumerate().filter_map(|(i, times)| Some((times[at]?, i))).collect();
            ranked.sort_unstable();
            let rows = TEAM_ROWS[at];
            let what = match key.team() {
                Some(TeamOp::Matmul) => {
                    format!("products of {rows} rows with up to 2^{class} weights")
                }
                Some(TeamOp::Embed) => {
                    format!("embeddings of {rows} tokens from up to 2^{class} weights")
                }
                Some(TeamOp::Attention) => {
                    format!("attention of {rows} queries with heads of up to 2^{class} numbers")
                }
                None => format!("calls of {rows} rows"),
            };
            Raced { what, ranked }
        };
        let each = |of_class| (0..TEAM_ROWS.len()).map(move |at| raced(of_class, at));
        classes.flat_map(each).filter(|raced| !raced.ranked.is_empty()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Document> {
        self.document.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One race.
pub(crate) struct Raced {
    /// What was computed.
    pub(crate) what: String,
    /// Nanoseconds, and whose by the index in the chain, the fastest first.
    pub(crate) ranked: Vec<(u64, usize)>,
}

/// The index of the least time with each number of rows: where none was taken with many, whoever won with one.
fn fastest(times: &[Nanos]) -> [usize; TEAM_ROWS.len()] {
    let mut winner = 0;
    std::array::from_fn(|at| {
        let timed = times.iter().enumerate().filter_map(|(i, times)| Some((times[at]?, i)));
        winner = timed.min().map_or(winner, |(_, i)| i);
        winner
    })
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
        assert_eq!(fastest(&[[Some(3), Some(1)], [None; 2], [Some(2); 2]]), [2, 0]);
        assert_eq!(fastest(&[[None; 2], [None; 2]]), [0, 0]);
        assert_eq!(fastest(&[[Some(1), None], [Some(1), None]]), [0, 0]);
        assert_eq!(fastest(&[[Some(2), None], [Some(1), None]]), [1, 1]);
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
