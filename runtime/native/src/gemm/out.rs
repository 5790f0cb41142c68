//! The output of a product, written by several threads at once, each its own columns.
//!
//! Invariant: at any time no two [`Columns`] of one output overlap. Only the two methods of [`Out`]
//! make them, from ranges that do not.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::{ThreadPool, split};

/// An output matrix `[m, n]`; it can only be written.
pub(super) struct Out<'a> {
    data: *mut f32,
    stride: usize,
    m: usize,
    n: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: elements are reached through `Columns` only, which threads hold disjoint ones of.
unsafe impl Sync for Out<'_> {}

/// Some columns of an output, in all its rows, to one thread.
pub(super) struct Columns<'a> {
    out: &'a Out<'a>,
    range: Range<usize>,
}

impl<'a> Out<'a> {
    /// `data` must hold `m` rows of `n` at `stride`, which must be at least `n`.
    pub(super) fn new(data: &'a mut [f32], stride: usize, m: usize, n: usize) -> Out<'a> {
        assert!(m > 0 && stride >= n && data.len() >= (m - 1) * stride + n, "output too small");
        Out { data: data.as_mut_ptr(), stride, m, n, borrow: PhantomData }
    }

    /// Calls `f` once on every thread, with contiguous shares of all columns.
    pub(super) fn share(self, pool: &ThreadPool, f: &(dyn Fn(&mut Columns<'_>) + Sync)) {
        let threads = pool.threads();
        pool.run(&|tid| {
            let range = split(self.n, threads, tid);
            if !range.is_empty() {
                f(&mut Columns { out: &self, range });
            }
        });
    }

    /// Calls `f` with `unit` columns at a time, on whichever thread is free.
    pub(super) fn deal(
        self,
        pool: &ThreadPool,
        unit: usize,
        f: &(dyn Fn(&mut Columns<'_>) + Sync),
    ) {
        let (unit, next) = (unit.max(1), AtomicUsize::new(0));
        pool.run(&|_| {
            loop {
                let start = next.fetch_add(1, Ordering::Relaxed).saturating_mul(unit);
                if start >= self.n {
                    return;
                }
                let range = start..self.n.min(start.saturating_add(unit));
                f(&mut Columns { out: &self, range });
            }
        });
    }
}

impl Columns<'_> {
    /// Which columns.
    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Those of them that are in `range`, for as long as this is not used itself.
    pub(super) fn part(&mut self, range: Range<usize>) -> Columns<'_> {
        let (start, end) = (self.range.start, self.range.end);
        Columns { out: self.out, range: range.start.max(start)..range.end.min(end) }
    }

    /// Sets `y[row, col..]` to `values`, leaving out what lies beyond the last of these columns;
    /// with `add`, adds to what is there.
    #[inline(always)]
    pub(super) fn put(&mut self, row: usize, col: usize, values: &[f32], add: bool) {
        assert!(row < self.out.m && self.range.contains(&col), "not these columns");
        let len = values.len().min(self.range.end - col);
        // SAFETY: `row < m` and `col + len <= range.end <= n <= stride`, so these elements are
        // inside `data`, which the output borrows; the columns are this thread's alone.
        let y = unsafe {
            std::slice::from_raw_parts_mut(self.out.data.add(row * self.out.stride + col), len)
        };
        if add {
            y.iter_mut().zip(values).for_each(|(y, x)| *y += x);
        } else if len == values.len() {
            // Of a length that the caller's code knows: a store, where the next line is a call.
            y.copy_from_slice(values);
        } else {
            y.copy_from_slice(&values[..len]);
        }
    }
}
