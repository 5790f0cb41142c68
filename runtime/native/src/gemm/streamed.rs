//! Products with a few rows of activations, which read packed weights from memory: how many panels are
//! read side by side, and how far ahead they are fetched ([`ReadPattern`]).
//!
//! A processor's memory answers faster when a thread asks for several places at a time: on a Zen 3 four
//! streams of a thread read a quarter more than one, on a Zen 5 they read less. So it is measured, with the weights that
//! will be read where there are any: what is best depends on their type.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use ruvllm_abi::DType;

use super::{Activations, MatMut, PackedWeights, matmul};
use crate::prefetch::ReadPattern;
use crate::{Isa, NativeError, ThreadPool};

/// What each pattern reads on this machine, in bytes per second, of all threads of a pool together.
#[derive(Clone, Debug)]
pub struct ReadRates(Vec<(ReadPattern, f64)>);

/// Weights that are read to measure, in bytes: several times what caches of a core and its neighbours hold.
const MEASURED_BYTES: usize = 128 << 20;

/// Parts of them, which are read one after the other, each time with another pattern: caches hold none of what comes next,
/// and where memory is slow for a while it is so for all patterns.
const PARTS: usize = 8;

/// How often each pattern reads a part.
const PASSES: usize = 3;

/// Patterns that go on, the fastest of all, and how often these read a part in the end: what is the best of several that
/// were timed a few times may only have been lucky.
const FINALISTS: usize = 3;
const FINAL_PASSES: usize = 9;

/// Columns of the matrices of [`ReadRates::uniform`].
const UNIFORM_COLS: usize = 4096;

impl ReadRates {
    /// Times products with each pattern of `pool` in turn, which afterwards is what it was: `product(i)` multiplies one row by
    /// a matrix of `sizes[i]` bytes. Takes the first 128 MiB, in all six times; a twentieth of a second where memory is slow.
    ///
    /// # Errors
    /// Those of `product`.
    pub fn measure<E>(
        pool: &ThreadPool,
        sizes: &[usize],
        mut product: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<ReadRates, E> {
        let parts = parts(sizes);
        let usual = pool.read_pattern();
        let mut rates = ReadPattern::ALL.map(|_| Vec::new());
        let mut running: Vec<usize> = (0..rates.len()).collect();
        // The first reading wakes the threads, and is none that counts.
        let mut order = parts.iter().cycle();
        order.next().cloned().into_iter().flatten().try_for_each(&mut product)?;
        for pass in 0..FINAL_PASSES {
            if pass == PASSES {
                running.sort_by(|a, b| median(&rates[*b]).total_cmp(&median(&rates[*a])));
                running.truncate(FINALISTS);
            }
            for &i in &running {
                let Some(part) = order.next() else { continue };
                pool.set_read_pattern(ReadPattern::ALL[i].1);
                let begun = Instant::now();
                let timed = part.clone().try_for_each(&mut product);
                let bytes: usize = sizes[part.clone()].iter().sum();
                rates[i].push(bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9));
                pool.set_read_pattern(usual);
                timed?;
            }
            if parts.len().is_multiple_of(running.len()) {
                // Else each would meet the same parts again.
                order.next();
            }
        }
        let of_patterns = ReadPattern::ALL.iter().zip(&rates);
        Ok(ReadRates(of_patterns.map(|((_, pattern), rates)| (*pattern, median(rates))).collect()))
    }

    /// [`measure`](Self::measure) with weights of a type that are all the same, in packed form.
    ///
    /// # Errors
    /// Products do not read packed weights of that type with these instructions, or the system has no memory for them.
    pub fn uniform(pool: &ThreadPool, isa: Isa, dtype: DType) -> Result<ReadRates, NativeError> {
        ReadRates::uniform_of(pool, isa, dtype, MEASURED_BYTES)
    }

    /// [`uniform`](Self::uniform) with so many bytes of weights.
    pub(super) fn uniform_of(
        pool: &ThreadPool,
        isa: Isa,
        dtype: DType,
        bytes: usize,
    ) -> Result<ReadRates, NativeError> {
        if !PackedWeights::pays(dtype, isa) {
            return Err(NativeError::Unsupported {
                what: "measuring how packed weights are read",
                detail: format!("{dtype} with {isa}"),
            });
        }
        let packed = (0..PARTS)
            .map(|_| PackedWeights::uniform(pool, isa, dtype, UNIFORM_COLS, bytes / PARTS))
            .collect::<Result<Vec<_>, _>>()?;
        let mut act = Activations::new();
        let forms = act.forms(isa, 1, &[dtype]);
        act.prepare(pool, isa, &[1.0; UNIFORM_COLS], 1, UNIFORM_COLS, forms)?;
        let mut y = vec![0.0; packed.iter().map(PackedWeights::rows).max().unwrap_or(0)];
        let sizes: Vec<usize> = packed.iter().map(PackedWeights::bytes).collect();
        ReadRates::measure(pool, &sizes, |i| {
            let w = packed[i].alone();
            let y = &mut y[..w.rows()];
            let stride = y.len();
            matmul(pool, isa, &w, &act, MatMut { data: y, stride })
        })
    }

    /// The fastest pattern; the default one where none is clearly faster.
    pub fn best(&self) -> ReadPattern {
        let usual = ReadPattern::default();
        let of =
            |pattern| self.0.iter().find(|(of, _)| *of == pattern).map_or(0.0, |(_, rate)| *rate);
        let best = self.0.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(usual, |best| best.0);
        if of(best) > 1.02 * of(usual) { best } else { usual }
    }

    /// Every pattern with its bytes per second.
    pub fn iter(&self) -> impl Iterator<Item = (ReadPattern, f64)> {
        self.0.iter().copied()
    }
}

/// Each pattern with its gigabytes per second.
impl fmt::Display for ReadRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (pattern, rate)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} {:.1}", pattern.name(), rate / 1e9)?;
        }
        Ok(())
    }
}

/// Products of about equal bytes, as many as [`PARTS`] or less, of what is measured with.
fn parts(sizes: &[usize]) -> Vec<Range<usize>> {
    let each = MEASURED_BYTES.min(sizes.iter().sum()) / PARTS;
    let (mut parts, mut first, mut bytes, mut all) = (Vec::new(), 0, 0, 0);
    for (i, size) in sizes.iter().enumerate() {
        (bytes, all) = (bytes + size, all + size);
        if bytes >= each {
            parts.push(first..i + 1);
            (first, bytes) = (i + 1, 0);
        }
        if all >= MEASURED_BYTES {
            break;
        }
    }
    parts
}

fn median(of: &[f64]) -> f64 {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod run {
    use crate::ThreadPool;
    use crate::gemm::kernels::packed::{MAX_STREAMS, PAIRED, Streams};
    use crate::gemm::kernels::{ActTile, Entries};
    use crate::gemm::out::{Columns, Out};
    use crate::gemm::packed::PANEL;
    use crate::gemm::tiled::{STREAMED, blocked, tile_shape, with_panel};
    use crate::gemm::tiles::{Tiles, with_tiles};
    use crate::gemm::{Job, PackedWeights, Product};
    use crate::prefetch::{Ahead, ReadPattern};
    use crate::quant::tag;
    use ruvllm_abi::DType;

    /// Bytes of weights that a thread takes at a time where it reads several streams: each of them has to be long before
    /// it is fast.
    const STREAMED_SIDE_BY_SIDE: usize = 2 * 1024 * 1024;

    impl ReadPattern {
        /// For several rows of activations, whichever pattern is the fastest for one. They leave no registers for several
        /// streams, and take so long to multiply that what is fetched far ahead has arrived; see the notes of `gemm`.
        const ROWS: ReadPattern = ReadPattern { streams: 1, ahead: Ahead::FAR };

        /// A panel that is packed for the product, and the only one.
        const ALONE: ReadPattern = ReadPattern { streams: 1, ahead: Ahead::NEAR };

        /// The panels that are read side by side, of so many that there are.
        fn streams(self, panels: usize) -> usize {
            let most = self.streams.min(panels);
            [4, 2, 1].into_iter().find(|streams| *streams <= most).unwrap_or(1)
        }
    }

    /// Computes products of the same activations from panels as they are read: each is in the first-level cache for all
    /// rows of activations.
    pub(in crate::gemm) fn run<S: Entries>(
        simd: S,
        pool: &ThreadPool,
        products: &mut [Product<'_>],
    ) {
        let shape = |Product { job, .. }: &Product<'_>| {
            tile_shape::<S>(job.w.dtype, widths::<S>(job.w.dtype, job.act.rows()))
        };
        for alike in products.chunk_by_mut(|a, b| shape(a) == shape(b)) {
            let Some(first) = alike.first() else { continue };
            let (act, shape) = (first.job.act, shape(first));
            let packed = alike.iter().filter_map(|product| product.job.w.packed);
            pool.expect(PackedWeights::follow(packed));
            let of_packed = if act.rows() == 1 { pool.read_pattern() } else { ReadPattern::ROWS };
            let panel_bytes =
                alike.iter().map(|product| product.job.panel_bytes()).max().unwrap_or(1);
            let bytes = if of_packed.streams > 1 { STREAMED_SIDE_BY_SIDE } else { STREAMED };
            let unit = (bytes / panel_bytes).max(1).next_multiple_of(MAX_STREAMS) * PANEL;
            let multiply = |tiles: &Tiles<'_>, job: &Job<'_>, y: &mut Columns<'_>| {
                let pattern = job.w.packed.map_or(ReadPattern::ALONE, |_| of_packed);
                multiply(simd, pattern, job, tiles, y);
            };
            if shape.laid_by_each(act, pool.threads()) {
                Out::share(alike, pool, unit, PANEL, &|job, y| {
                    with_tiles(simd, None, act, shape, |tiles| multiply(tiles, job, y));
                });
            } else {
                with_tiles(simd, Some(pool), act, shape, |tiles| {
                    Out::share(alike, pool, unit, PANEL, &|job, y| multiply(tiles, job, y));
                });
            }
        }
    }

    /// Computes the columns `y`.
    fn multiply<S: Entries>(
        simd: S,
        pattern: ReadPattern,
        job: &Job<'_>,
        tiles: &Tiles<'_>,
        y: &mut Columns<'_>,
    ) {
        let (dtype, panel_bytes) = (job.w.dtype, job.panel_bytes());
        let mut range = y.range();
        while !range.is_empty() {
            let panels = range.len().div_ceil(PANEL);
            let count = pattern.streams(panels);
            let apart = panels / count;
            for col in (range.start..).step_by(PANEL).take(apart) {
                let mut dot_panels = |panels: &[u8]| {
                    let ahead = pattern.ahead;
                    let mut streams = Streams { panels, panel_bytes, count, apart, col, ahead };
                    for (rows, act) in tiles.iter() {
                        dot(simd, dtype, &streams, rows, act, y);
                        // What the first tile has asked for needs not be asked for again.
                        streams.ahead = Ahead::NONE;
                    }
                };
                match job.w.packed {
                    Some(packed) => dot_panels(packed.panels(col, (count - 1) * apart + 1)),
                    None => with_panel::<S>(job, col, dot_panels),
                }
            }
            range.start += apart * count * PANEL;
        }
    }

    /// The rows of tiles, where there are so many rows in all: the widest that fit, or about as many in each tile where
    /// kernels take any number. Multiples of eight take one part of a panel at a time there, too, so that registers are left
    /// for weights that are picked apart; with some types that is slower (see the notes of `gemm`).
    fn widths<S: Entries>(dtype: DType, rows: usize) -> &'static [usize] {
        let all = S::STREAMED_WIDTHS;
        let evenly = matches!(dtype, DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q4_K);
        let in_eights = rows.is_multiple_of(8) && !evenly;
        if in_eights || !all.contains(&PAIRED) {
            return all;
        }
        let even = rows.div_ceil(rows.div_ceil(PAIRED));
        &all[all.iter().position(|width| *width <= even).unwrap_or(0)..]
    }

    /// Multiplies panels of weights of a type with a tile of `rows` rows: up to four with one row, one with more.
    fn dot<S: Entries>(
        simd: S,
        dtype: DType,
        streams: &Streams<'_>,
        rows: usize,
        act: ActTile<'_>,
        y: &mut Columns<'_>,
    ) {
        match rows {
            8 => blocked!(dtype, simd.dot_packed < _, 1, 8 > (streams, act, y)),
            6 => blocked!(dtype, simd.dot_packed < _, 1, 6 > (streams, act, y)),
            5 => blocked!(dtype, simd.dot_packed < _, 1, 5 > (streams, act, y)),
            4 => blocked!(dtype, simd.dot_packed < _, 1, 4 > (streams, act, y)),
            3 => blocked!(dtype, simd.dot_packed < _, 1, 3 > (streams, act, y)),
            2 => blocked!(dtype, simd.dot_packed < _, 1, 2 > (streams, act, y)),
            _ => blocked!(dtype, simd.dot_packed < _, 4, 1 > (streams, act, y)),
        }
    }
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use run::run;
