//! The output of a product, written by several threads at once, each its own columns.
//!
//! Invariant: at any time no two [`Columns`] of one output overlap. Only the two methods of [`Out`]
//! make them, from ranges that do not, and hold the outputs exclusively as long as there are any.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Job, MatMut, Product};
use crate::NativeError;
use crate::pool::{Padded, ThreadPool, pieces, split};
use crate::prefetch::prefetch_all_to_write;

/// An output matrix `[m, n]`.
#[derive(Debug)]
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
    /// `m` rows of `n` elements.
    ///
    /// # Errors
    /// They do not fit.
    pub(super) fn new(y: MatMut<'a>, m: usize, n: usize) -> Result<Out<'a>, NativeError> {
        let MatMut { data, stride } = y;
        let shape = |what, expected, actual| Err(NativeError::Shape { what, expected, actual });
        if m > 0 && stride < n {
            return shape("matmul: stride of the output", n, stride);
        }
        let needed =
            m.checked_sub(1).map_or(0, |rows| rows.saturating_mul(stride).saturating_add(n));
        if data.len() < needed {
            return shape("matmul: elements of the output", needed, data.len());
        }
        Ok(Out { data: data.as_mut_ptr(), stride, m, n, borrow: PhantomData })
    }

    /// Calls `f` with at most about `unit` columns of one product at a time, of which the first is a multiple of `align`.
    /// Every thread goes through a contiguous share of the columns of all products from its start, so that it reads
    /// the weights as one stream; one that is done takes from the end of another's share, so that none
    /// waits for a thread that came late or whose memory is slower.
    pub(super) fn share(
        products: &mut [Product<'_>],
        pool: &ThreadPool,
        unit: usize,
        align: usize,
        f: &(dyn Fn(&Job<'_>, &mut Columns<'_>) + Sync),
    ) {
        let (products, threads, align) = (&*products, pool.threads(), align.max(1));
        let lens = || products.iter().map(|product| product.out.n.div_ceil(align));
        let (items, unit) = (lens().sum(), unit.div_ceil(align));
        let run = |items: Range<usize>| {
            for (of, items) in pieces(lens(), items) {
                let Product { job, out, .. } = &products[of];
                let range = items.start * align..out.n.min(items.end * align);
                f(job, &mut Columns { out, range });
            }
        };
        with_shares(items, threads, |shares| match shares {
            Some(shares) => pool.run(&|tid| {
                for of in (tid..threads).chain(0..tid) {
                    while let Some(items) = shares.take(of, unit, of != tid) {
                        run(items);
                    }
                }
            }),
            None => pool.run(&|tid| {
                let items = split(items, threads, tid);
                if !items.is_empty() {
                    run(items);
                }
            }),
        });
    }

    /// Calls `f` with `unit` columns at a time, on whichever thread is free.
    pub(super) fn deal(
        &mut self,
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
                f(&mut Columns { out: self, range });
            }
        });
    }
}

/// Of a thread's share of some items the first that nobody has taken and the end, in one word, on a cache line of its own:
/// one that is taken from often stays with the thread that does.
type Share = Padded<AtomicU64>;

thread_local! {
    /// The shares of the products of this thread, kept from product to product.
    static SHARES: Cell<Vec<Share>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with even shares of `n` items, or with `None` where there are too many.
fn with_shares(n: usize, threads: usize, f: impl FnOnce(Option<Shares<'_>>)) {
    if u32::try_from(n).is_err() {
        return f(None);
    }
    let mut left = SHARES.take();
    if left.len() < threads {
        left.resize_with(threads, Share::default);
    }
    for (tid, share) in left[..threads].iter_mut().enumerate() {
        *share.0.get_mut() = Shares::pack(split(n, threads, tid));
    }
    f(Some(Shares { left: &left[..threads], parts: threads.min(2) }));
    SHARES.set(left);
}

/// What the threads have left to do.
struct Shares<'a> {
    left: &'a [Share],
    /// One of so many parts of what is left of a share is taken at most.
    parts: usize,
}

impl Shares<'_> {
    fn pack(range: Range<usize>) -> u64 {
        (range.start as u64) << 32 | range.end as u64
    }

    /// Takes `unit` items of a share that nobody has taken, from its start or its end; of several threads none takes more
    /// than half of what is left, so that all are done at about the same time.
    fn take(&self, of: usize, unit: usize, from_end: bool) -> Option<Range<usize>> {
        let Padded(share) = self.left.get(of)?;
        // What the columns hold is published when the threads of the pool meet again.
        let mut seen = share.load(Ordering::Relaxed);
        loop {
            let left = (seen >> 32) as usize..(seen & 0xffff_ffff) as usize;
            if left.is_empty() {
                return None;
            }
            let count = unit.clamp(1, left.len().div_ceil(self.parts));
            let (taken, rest) = if from_end {
                (left.end - count..left.end, left.start..left.end - count)
            } else {
                (left.start..left.start + count, left.start + count..left.end)
            };
            let new = Self::pack(rest);
            match share.compare_exchange_weak(seen, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => seen = now,
            }
        }
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

    /// Rows of the output.
    pub(super) fn rows(&self) -> usize {
        self.out.m
    }

    /// Asks for the memory of `y[first..first + rows, col..col + len]`, which will be written.
    #[inline(always)]
    pub(super) fn fetch(&self, first: usize, rows: usize, col: usize, len: usize) {
        for row in first..first + rows {
            prefetch_all_to_write(self.out.data.wrapping_add(row * self.out.stride + col), len);
        }
    }

    /// What `y[row, col..]` holds, as much as there is of that; of what lies beyond the last of these columns, `values`
    /// stay as they are.
    #[inline(always)]
    pub(super) fn get(&self, row: usize, col: usize, values: &mut [f32]) {
        assert!(row < self.out.m && self.range.contains(&col), "not these columns");
        let count = values.len().min(self.range.end - col);
        // SAFETY: as for `put`; the output's memory has held numbers from the start.
        let y = unsafe {
            std::slice::from_raw_parts(self.out.data.add(row * self.out.stride + col), count)
        };
        values[..count].copy_from_slice(y);
    }

    /// Sets `y[row, col..]` to `values`, leaving out what lies beyond the last of these columns;
    /// with `add`, adds to what is there.
    #[inline(always)]
    pub(super) fn put(&mut self, row: usize, col: usize, values: &[f32], add: bool) {
        assert!(row < self.out.m && self.range.contains(&col), "not these columns");
        let left = self.range.end - col;
        // SAFETY: `row < m` and `col + left = range.end <= n <= stride`, so these elements are
        // inside `data`, which the output borrows; the columns are this thread's alone.
        let y = unsafe {
            std::slice::from_raw_parts_mut(self.out.data.add(row * self.out.stride + col), left)
        };
        match y.split_at_mut_checked(values.len()) {
            _ if add => y.iter_mut().zip(values).for_each(|(y, x)| *y += x),
            // Of a length that the caller's code knows, so it compiles to a store.
            Some((y, _)) => y.copy_from_slice(values),
            None => copy_part(values, y),
        }
    }
}

/// Copies as much as `y` holds. Inlined, it would be merged with the copy of all, into a call.
#[cold]
#[inline(never)]
fn copy_part(values: &[f32], y: &mut [f32]) {
    y.copy_from_slice(&values[..y.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::gemm::{ActForm, Activations, Weights};
    use ruvllm_abi::DType;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_column_is_dealt_out_once_however_threads_race() {
        for threads in [1, 2, 3, 5] {
            let pool = ThreadPool::new(threads);
            let cases = [(1, 16, 1), (7, 1, 4), (64, 3, 1), (1000, 16, 16), (1000, 5000, 7)];
            let mut act = Activations::new();
            act.prepare(&pool, Isa::Scalar, &[0.0], 1, 1, ActForm::Floats.into()).unwrap();
            let zeros = [0; 4 * 1000];
            for (n, unit, align) in cases {
                for others in [vec![], vec![5], vec![3, 40]] {
                    let sizes: Vec<usize> = others.into_iter().chain([n]).collect();
                    let mut ys: Vec<Vec<f32>> = sizes.iter().map(|n| vec![0.0; *n]).collect();
                    let taken: Vec<Vec<AtomicU32>> = sizes
                        .iter()
                        .map(|n| (0..*n).map(|_| AtomicU32::new(0)).collect())
                        .collect();
                    let outs = ys.iter_mut().zip(&sizes);
                    let mut products: Vec<Product<'_>> = outs
                        .map(|(y, n)| {
                            let w = Weights::new(DType::F32, *n, 1, &zeros[..4 * n]).unwrap();
                            Product::new(Isa::Scalar, w, &act, MatMut { data: y, stride: *n })
                        })
                        .collect::<Result<_, _>>()
                        .unwrap();
                    Out::share(&mut products, &pool, unit, align, &|job, columns| {
                        assert!(columns.range().start.is_multiple_of(align));
                        let of = sizes.iter().position(|n| *n == job.w.rows()).unwrap();
                        for i in columns.range() {
                            taken[of][i].fetch_add(1, Ordering::Relaxed);
                            columns.put(0, i, &[i as f32], false);
                        }
                    });
                    assert!(taken.iter().flatten().all(|taken| taken.load(Ordering::Relaxed) == 1));
                    for y in ys {
                        assert!(y.iter().enumerate().all(|(i, y)| *y == i as f32));
                    }
                }
            }
        }
    }

    #[test]
    fn shares_are_taken_from_both_ends_and_refused_beyond_their_limits() {
        with_shares(10, 2, |shares| {
            let shares = shares.unwrap();
            assert_eq!(shares.take(0, 2, false), Some(0..2));
            assert_eq!(shares.take(0, 2, true), Some(3..5));
            assert_eq!(shares.take(0, 2, false), Some(2..3));
            assert_eq!(shares.take(0, 2, false), None);
            assert_eq!(shares.take(1, 9, true), Some(7..10));
            assert_eq!(shares.take(2, 1, false), None);
        });
        with_shares(10, 1, |shares| {
            assert_eq!(shares.unwrap().take(0, 9, false), Some(0..9));
        });
        with_shares(u32::MAX as usize + 1, 2, |shares| assert!(shares.is_none()));
    }
}
