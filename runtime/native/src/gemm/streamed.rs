//! Products with a few rows of activations, which read packed weights from memory: how many panels are
//! read side by side, and how far ahead they are fetched.
//!
//! A processor's memory answers faster when a thread asks for several places at a time: on a Zen 3 four
//! streams of a thread read a quarter more than one, on a Zen 5 they read less. So it is measured.

use std::time::{Duration, Instant};

use ruvllm_abi::DType;

use super::{Activations, MatMut, PackedWeights, matmul};
use crate::{Isa, NativeError, ThreadPool};

/// How products with few rows of activations read packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPattern {
    streams: usize,
    far: bool,
}

impl ReadPattern {
    /// All that there are, by their names.
    pub const ALL: [(&'static str, ReadPattern); 6] = [
        ("1-near", ReadPattern { streams: 1, far: false }),
        ("1-far", ReadPattern { streams: 1, far: true }),
        ("2-near", ReadPattern { streams: 2, far: false }),
        ("2-far", ReadPattern { streams: 2, far: true }),
        ("4-near", ReadPattern { streams: 4, far: false }),
        ("4-far", ReadPattern { streams: 4, far: true }),
    ];

    /// A single panel at a time.
    const ONE: ReadPattern = ReadPattern { streams: 1, far: false };

    /// The pattern of that name, such as `4-near`: panels that a thread reads side by side, and
    /// whether they are fetched a kilobyte ahead or, into the second-level cache, 24.
    pub fn named(name: &str) -> Option<ReadPattern> {
        Self::ALL.iter().find(|(of, _)| *of == name).map(|(_, pattern)| *pattern)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, of)| *of == self).map_or("", |(name, _)| name)
    }
}

impl Default for ReadPattern {
    /// What reads the most on the processors that it was measured on last, a Zen 4 and a Zen 5.
    fn default() -> Self {
        ReadPattern { streams: 1, far: true }
    }
}

/// What each pattern reads on this machine, in bytes per second, of all threads of a pool together.
#[derive(Clone, Debug)]
pub struct ReadRates(Vec<(ReadPattern, f64)>);

/// Panels that are read to measure, in bytes: several times what caches of a core and its neighbours
/// hold.
const MEASURED_BYTES: usize = 128 << 20;

/// Columns of the measured matrix.
const MEASURED_COLS: usize = 4096;

impl ReadRates {
    /// Multiplies one row of activations by 128 MiB of packed weights with each pattern in turn, three
    /// times. Takes a fifth of a second where memory is slow.
    ///
    /// # Errors
    /// Products do not read packed weights with these instructions, or the system has no memory for them.
    pub fn measure(pool: &ThreadPool, isa: Isa) -> Result<ReadRates, NativeError> {
        ReadRates::of(pool, isa, MEASURED_BYTES)
    }

    /// [`measure`](Self::measure) with so many bytes of weights.
    pub(super) fn of(pool: &ThreadPool, isa: Isa, bytes: usize) -> Result<ReadRates, NativeError> {
        if !PackedWeights::pays(DType::Q4_0, isa) {
            return Err(NativeError::Unsupported {
                what: "measuring how packed weights are read",
                detail: isa.to_string(),
            });
        }
        let mut packed = PackedWeights::uniform(pool, DType::Q4_0, MEASURED_COLS, bytes)?;
        let (mut act, mut y) = (Activations::new(), vec![0.0; packed.rows()]);
        act.prepare(
            pool,
            isa,
            &[1.0; MEASURED_COLS],
            1,
            MEASURED_COLS,
            act.forms(isa, 1, &[DType::Q4_0]),
        )?;
        let mut rates = ReadPattern::ALL.map(|(_, pattern)| (pattern, Duration::MAX));
        for _ in 0..3 {
            for (pattern, best) in &mut rates {
                packed.set_pattern(*pattern);
                let begun = Instant::now();
                let stride = y.len();
                matmul(pool, isa, &packed.alone(), &act, MatMut { data: &mut y, stride })?;
                *best = begun.elapsed().min(*best);
            }
        }
        let rate = |time: Duration| packed.bytes() as f64 / time.as_secs_f64().max(1e-9);
        Ok(ReadRates(rates.map(|(pattern, best)| (pattern, rate(best))).to_vec()))
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

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod run {
    use super::ReadPattern;
    use crate::ThreadPool;
    use crate::gemm::Job;
    use crate::gemm::kernels::packed::{MAX_STREAMS, PAIRED, Streams};
    use crate::gemm::kernels::{ActTile, Ahead, Entries};
    use crate::gemm::out::{Columns, Out};
    use crate::gemm::packed::{Layout, PANEL};
    use crate::gemm::tiled::{STREAMED, blocked, tile_shape, with_panel};
    use crate::gemm::tiles::with_tiles;
    use crate::quant::tag;
    use ruvllm_abi::DType;

    impl ReadPattern {
        /// The panels that products with so many rows of activations read side by side, of so many that
        /// there are: more rows need the registers themselves, and memory is not what they wait for.
        fn streams(self, rows: usize, panels: usize) -> usize {
            let most = self.streams.min(match rows {
                1 => MAX_STREAMS,
                2 => 2,
                _ => 1,
            });
            [4, 2, 1].into_iter().find(|streams| *streams <= most.min(panels)).unwrap_or(1)
        }

        fn ahead(self) -> Ahead {
            if self.far { Ahead::FAR } else { Ahead::NEAR }
        }
    }

    /// Computes `out` from panels as they are read: each is in the first-level cache for all rows of
    /// activations.
    pub(in crate::gemm) fn run<S: Entries>(
        simd: S,
        pool: &ThreadPool,
        job: &Job<'_>,
        out: Out<'_>,
    ) {
        let (dtype, rows) = (job.w.dtype, job.act.rows());
        // A panel that is packed for the product is the only one.
        let pattern = job.w.packed.map_or(ReadPattern::ONE, |packed| packed.pattern());
        if let Some(packed) = job.w.packed {
            pool.expect(packed.follow());
        }
        let panel_bytes = Layout::of(dtype).panel_bytes(job.w.cols);
        let unit = (STREAMED / panel_bytes).max(1).next_multiple_of(MAX_STREAMS) * PANEL;
        with_tiles(simd, pool, job.act, tile_shape::<S>(dtype, widths::<S>(rows)), |tiles| {
            out.share(pool, unit, PANEL, &|y| {
                let mut range = y.range();
                while !range.is_empty() {
                    let panels = range.len().div_ceil(PANEL);
                    let count = pattern.streams(rows, panels);
                    let each = panels / count;
                    for i in 0..each {
                        let cols = std::array::from_fn(|p| {
                            range.start + (p.min(count - 1) * each + i) * PANEL
                        });
                        let mut multiply = |streams: &Streams<'_>| {
                            for (rows, act) in tiles.iter() {
                                dot(simd, dtype, streams, rows, act, y);
                            }
                        };
                        let ahead = pattern.ahead();
                        match job.w.packed {
                            Some(packed) => multiply(&Streams {
                                panels: cols.map(|col| packed.panel(col)),
                                cols,
                                count,
                                ahead,
                            }),
                            None => with_panel::<S>(job, cols[0], |panel| {
                                multiply(&Streams {
                                    panels: [panel; MAX_STREAMS],
                                    cols,
                                    count,
                                    ahead,
                                });
                            }),
                        }
                    }
                    range.start += each * count * PANEL;
                }
            });
        });
    }

    /// The rows of tiles, where there are so many rows in all: the widest that fit, or about as many in each tile where
    /// kernels take any number. Multiples of eight take one part of a panel at a time there, too, so that registers are left
    /// for weights that are picked apart.
    fn widths<S: Entries>(rows: usize) -> &'static [usize] {
        let all = S::STREAMED_WIDTHS;
        if rows.is_multiple_of(8) || !all.contains(&PAIRED) {
            return all;
        }
        let even = rows.div_ceil(rows.div_ceil(PAIRED));
        &all[all.iter().position(|width| *width <= even).unwrap_or(0)..]
    }

    /// Multiplies panels of weights of a type with a tile of `rows` rows: up to four with one row, two
    /// with two, one with more.
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
            2 => blocked!(dtype, simd.dot_packed < _, 2, 2 > (streams, act, y)),
            _ => blocked!(dtype, simd.dot_packed < _, 4, 1 > (streams, act, y)),
        }
    }
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use run::run;
