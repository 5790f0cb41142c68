//! Rows of results: where they go, and how threads share them out.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ruvllm_host::Worker;
use ruvllm_native::gemm::ActRows;
use ruvllm_native::pool::split;
use ruvllm_native::{NativeError, ThreadPool};
use smallvec::SmallVec;

use crate::error::EngineError;

/// Elements below which waking the other threads costs more than it saves.
const SPLIT_ELEMS: usize = 8 * 1024;

/// Pieces for each thread: one that is slower, or comes late, takes less of them.
const PIECES: usize = 4;

/// Threads up to which sharing rows out takes nothing from the heap.
const FEW: usize = 8;

/// Rows that threads share out.
pub(super) trait Rows: Send + Sized {
    fn count(&self) -> usize;

    /// Elements of all rows.
    fn elems(&self) -> usize;

    /// Takes so many rows away from the front.
    fn split_off_front(&mut self, rows: usize) -> Self;
}

/// An output, `dim` elements a row.
pub(super) struct Outputs<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) dim: usize,
}

impl<T: Send> Rows for Outputs<'_, T> {
    fn count(&self) -> usize {
        self.data.len() / self.dim
    }

    fn elems(&self) -> usize {
        self.data.len()
    }

    fn split_off_front(&mut self, rows: usize) -> Self {
        let (front, rest) = std::mem::take(&mut self.data).split_at_mut(rows * self.dim);
        self.data = rest;
        Outputs { data: front, dim: self.dim }
    }
}

/// Where the rows of a result go: to what products read, and as they are where adapters read them too.
pub(crate) struct RowSink<'a> {
    pub(crate) products: ActRows<'a>,
    /// `[rows, cols]`, if anybody reads that.
    pub(crate) plain: Option<&'a mut [f32]>,
}

impl RowSink<'_> {
    /// Elements of a row.
    pub(super) fn cols(&self) -> usize {
        self.products.cols()
    }

    /// Takes in `x` `[n, cols]` as the rows from `first` on.
    pub(super) fn put(&mut self, first: usize, x: &[f32]) -> Result<(), NativeError> {
        self.products.put(first, x)?;
        if let Some(plain) = &mut self.plain {
            plain[first * self.products.cols()..][..x.len()].copy_from_slice(x);
        }
        Ok(())
    }
}

impl Rows for RowSink<'_> {
    fn count(&self) -> usize {
        self.products.rows()
    }

    fn elems(&self) -> usize {
        self.count() * self.cols()
    }

    fn split_off_front(&mut self, rows: usize) -> Self {
        let len = rows * self.cols();
        let plain = self.plain.take().map(|plain| {
            let (front, rest) = plain.split_at_mut(len);
            self.plain = Some(rest);
            front
        });
        RowSink { products: self.products.split_off_front(rows), plain }
    }
}

/// Rows that belong to each other, as many of both.
impl<A: Rows, B: Rows> Rows for (A, B) {
    fn count(&self) -> usize {
        self.1.count()
    }

    fn elems(&self) -> usize {
        self.1.elems()
    }

    fn split_off_front(&mut self, rows: usize) -> Self {
        (self.0.split_off_front(rows), self.1.split_off_front(rows))
    }
}

/// Work on some rows: the worker, the index of the first row, and the rows.
pub(super) type RowWork<'a, R> =
    dyn Fn(&mut Worker, usize, &mut R) -> Result<(), EngineError> + Sync + 'a;

/// Runs `work` over all rows.
pub(super) fn over_rows<R: Rows>(
    pool: &ThreadPool,
    workers: &mut [Worker],
    mut rows: R,
    work: &RowWork<'_, R>,
) -> Result<(), EngineError> {
    let threads = pool.threads().min(workers.len());
    if rows.count() == 1 || threads == 1 || rows.elems() < SPLIT_ELEMS {
        return match workers.first_mut() {
            Some(worker) => work(worker, 0, &mut rows),
            None => Ok(()),
        };
    }
    let (count, failed) = (rows.count(), Mutex::new(None));
    let piece = count.div_ceil(threads * PIECES);
    // Each thread begins with the same rows every time, which its cache holds from the last, and then helps the others.
    let shares = (0..threads).map(|tid| {
        let Range { start, end } = split(count, threads, tid);
        Mutex::new((start, rows.split_off_front(end - start)))
    });
    let shares: SmallVec<[_; FEW]> = shares.collect();
    let take = |share: &Mutex<(usize, R)>| {
        let (first, rows) = &mut *share.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, count) = (*first, piece.min(rows.count()));
        *first += count;
        (count > 0).then(|| (at, rows.split_off_front(count)))
    };
    pool.run_with(workers, &|tid, worker| {
        for share in shares.iter().cycle().skip(tid).take(threads) {
            while let Some((first, mut rows)) = take(share) {
                if let Err(error) = work(worker, first, &mut rows) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
