//! Products of activations with weights in any format: `y[m, n] = x[m, k] · w[n, k]ᵀ`.
//!
//! Blocked weights meet activations quantised to 8 bits with a scale of 6 bits per 32 elements, multiplied
//! as integers; [`Activations`] holds them, quantised once for all matrices that share an input. They are
//! read in panels of sixteen rows, from [`PackedWeights`] or else rearranged for each product:
//! - few rows of `x` (decoding): with panels as they are read from memory (`streamed`). Memory bandwidth is
//!   the bound; panels are split among the threads in contiguous shares. Threads that wait fetch the panels that were
//!   read next the last time.
//! - many rows (prompts, batches): panels are unpacked into a buffer that stays in the second-level cache, and
//!   run over all rows of `x` in register tiles (`tiled`), to the same bits.
//!
//! Rows of `x` that are multiplied together lie side by side for both (see `tiles`).
//!
//! Plain float weights meet the activations as f32, or many rows as bf16 where that is allowed and the
//! processor has its products: few rows of `x` with each weight row as it is read, many with panels of them.
//! The error against f64 is thus that of rounding activations to 8 bits (about 0.4 % of a block's largest, and no less than
//! 0.4 % of a 32nd of the largest of its 256) or that of f32 summation.
//!
//! What was tried for 256-bit vectors without 8-bit dot products (Zen 3) and did not pay: fetching the next
//! blocks of a tile's panels (no gain, some loss), and leaving it to the compiler in which order sums grow
//! (it kept what it had read of the activations for the other half of a panel, and ran out of registers: half
//! the speed with four rows), and two shorter sums of a block instead of one, for one and two rows (0.98). What
//! did: both halves of a panel side by side, which share what is read of the activations (1.15 with one to four
//! rows, weights in cache).
//!
//! A Zen 4 with AVX2 is faster where both products of a row of a tile stand before both sums (see `x86_avx2`): 512 rows of
//! Q8_0 1.07 times, of Q4_0 1.04, of Q4_K 1.03, of Q6_K 1.05; products and sums alone of a block of Q8_0 take 97 cycles
//! instead of 105, where the multipliers need 96. Where a compiler is told that order alone, it moves loads before it and runs
//! out of registers (0.8 to 0.99). Of few rows it pays for 5 and 6 of Q8_0 (1.03), and is used for these alone: Q4_K has 1.04
//! with 5 and 0.92 with 6; all types have 0.95 to 1.04 with 2 to 4 rows, and 0.94 to 1.02 with 8.
//! For prompts in 8 bits it makes no difference whether weights are read by the products themselves (slower), or in which
//! order a block's dot products become floats: sums of integers are given to the two units that multiply
//! as often as to the others, so that 160 products take 6.1 cycles instead of the 5 that the multipliers need. On a Zen 4
//! sums of 8-bit weights are therefore made to be floats (`sums::FLOATS`), which other units add, with six rows of
//! activations in a tile: 1.11 times as fast. Sums of fewer bits stay integers: a float has no room for two of 16 bits.
//! On a Zen 3 sums of floats are 0.82 to 0.84 times as fast, sums of integers and floats in turn 0.92, and Strassen's
//! algorithm 0.75 to 0.97: of products and sums alone it does 1.60 a cycle with integers and 1.08 with floats, where the
//! multipliers allow 2. Whether two, four or one product stand before their sums, and whether tiles are 2 by 5, 2 by 6 or 3
//! by 4, makes 0.97 to 1.00 of it. A block of Q8_0 takes it 138 cycles so, scales and floats included, and 146 in whole
//! products. Tiles of 1024 to 3000 columns at a time, so that activations stay in the first-level cache: 0.92 to 1.00 (Q8_0,
//! Q4_0 and Q4_K, 2048 and 5632 columns).
//! Of Intel's units three add, of which two multiply, and of 35 instructions for 256 products 32 are products and sums:
//! `kernels::strassen` has 28 of 31, with sums of weights and of activations that take almost twice the memory. On a Xeon
//! products of 512 rows are 1.05 to 1.09 times as fast with 576 to 5632 columns; with 28,672 they were slower. With
//! Strassen's algorithm, whose sums are integers, a Zen 4 is 0.99 times as fast as with floats with 576 and 1536 columns,
//! 0.96 with 2048 and 0.8 with 5632. Fetching the panels of the next unit while one is multiplied made no difference on
//! the Xeon (1.00 and 1.01).
//! Formats without a bias have the first products as the first sums (`sums::PAIRS_FROM_ZERO`): 1.04 times as fast.
//! Of Q4_K, scales of weights and of activations are integers (`kernels::scaled`), and two blocks are multiplied side by
//! side: on a Xeon with AVX2, 512 rows are 1.12 times as fast, and 4, 8 and 16 rows 1.08, 1.03 and 1.07 times. Where
//! packed panels did not hold two blocks side by side, 8 rows were 0.96 times as fast as before. One block after the
//! other gave 1.07 and 1.05 with 512 rows.
//! Scales of weights alone as integers gave 1.03 (Q4_K and Q6_K), 0.98 (Q5_K) and, with 8 and 16 rows of Q4_K, which
//! need registers for more sums, 0.93. Scales of activations of 6 bits cost nothing that can be measured: on 105
//! chunks of 512 tokens SmolLM2-135M-Instruct (Q4_1) has a perplexity of 9.250 with them, of 9.252 with scales in f32, of
//! 9.222 with activations in f32; with powers of two as scales 9.291, with one scale per 64 elements 9.288, per 256 9.387.
//! With AVX2 that Xeon is bound by its three units for vectors, of which two multiply: a block of a tile of Q4_K kept
//! them busy for 6.7 of the 8.9 cycles that it took with scales in f32. So it did not pay to read weights by the products themselves, with
//! four panels to three rows of activations and a seventh less instructions (0.81); nor, for 5 to 32 rows, to unpack a
//! panel to the first-level cache for all of them, with a twentieth less (16 rows of Q4_K 0.92, with two blocks side by
//! side 0.96, of Q6_K 1.02; 8 rows 0.82 and 0.85).
//! There offsets that are subtracted with each pair of blocks instead of each unit gave 1.00 to 1.01 (16 and 512 rows): products
//! and sums alone take 0.70 cycles for 32 products, where three ports need 0.67, and with the scales 0.89, where they need 0.79.
//! With 576 columns, where a pair of panels fits into the first-level cache, multiplying it with sixteen tiles of
//! activations before the next pair was slower, too (0.90 with AVX2, 0.94 with AVX-512).
//! On a Zen 4 tiles are faster for 16 rows while weights are in its second-level cache (Q4_K 1.07, Q5_K 1.09, Q6_K 1.05, Q4_0
//! and Q8_0 1.00), and slower from memory (0.83 to 0.89), since panels are then unpacked all at once;
//! on a Zen 3 1.10, 0.97 and 0.89 (Q4_K, Q4_0 and Q8_0), from memory 0.92, 0.87 and 0.79. Tiles of one panel, unpacked 256, 512
//! or 1024 columns at a time, are no faster on the Zen 4: from memory 0.78 to 0.91 (those three types), in cache 0.91 to 1.03.
//! There, with AVX2 and weights in cache, 3, 5, 6 and 7 rows are 1.27 to 1.44, 1.15 to 1.31, 1.07 to 1.23 and 1.12 to 1.22
//! times as fast, by type, since tiles of 3, 5 and 6 rows are multiplied with two parts of a panel at a time, as those of 4
//! are; 9 and 12 rows, as tiles of about as many rows, 1.10 to 1.13 and 1.01 to 1.06 times. 16 rows in tiles of 6, 6 and
//! 4 are 1.07 times as fast with Q8_0, which takes less instructions so, and 1.03 with Q4_0, which takes a hundredth more; 8 rows
//! in two tiles of 4 are as fast with Q8_0 and 1.02 times with Q4_0, which takes a fiftieth more; Q4_1 has 0.98 to 1.02 with 16
//! rows and 1.04 with 8, Q4_K 1.01 with both (in whole programs 0.95 and 1.00). On a Zen 3 Q4_1 has 1.07 and 1.04, Q4_K 1.04 and
//! 1.08. Other types keep their tiles of 8: on the Zen 4 they had 0.91 to 1.00 without, on the Zen 3 Q5_0 has 0.98 and 0.91,
//! Q6_K 1.02 and 0.96.
//! The six bits of Q6_K were nibbles and pairs of bits: as they lie now, one row takes 0.82 of the time with AVX2, 0.87 with
//! AVX-512, with VNNI or without; 4 rows take 0.95. NEON without dot products takes 9 % less instructions with one row, and
//! 7 % more with 8.
//!
//! Panels that are read as they are stored, on a Zen 4 with AVX2. Of 8-bit weights, sums of floats (`sums::FLOATS`), which
//! need the sums of the weights as well: 0.9 with 3 to 16 rows. Odd bytes multiplied without a shift, even ones with
//! activations that make up for it, 256 times as large: 1.08 with one row in cache, 1.00 from memory, and with more than four
//! rows. Absolute values times activations with the sign of the weights would be 0.85: signs are the multipliers' work, too.
//! A kernel of its own for one row and one panel at a time: 1.07 to 1.11 in cache, 0.98 to 1.01 from memory.
//! Fetching with each load, not a block's lines at once: 1.05 with 4 rows of Q8_0 in cache, 0.83 with 5, else 1.00;
//! past the second-level cache: 0.85 to 1.01, and in whole programs 0.95 to 0.99 with one stream. The second-level cache is
//! filled 24 KiB ahead, which is 1.01 to 1.05 times as fast from memory as 12, and no slower than 32 to 128; without it, or
//! without filling the first-level one, 0.85 to 1.02.
//! Products of one row that have little to compute are read faster where nothing is fetched: with AVX-512 VNNI Q4_0 at 26.6
//! GB/s instead of 21.1 (`1-none` and `1-far`, one thread), Q8_0 24.7 instead of 21.2, Q4_K 23.6 instead of 20.1; with AVX2 Q4_K
//! 21.5 instead of 25.9. So it is a pattern like the others. Nothing that is fetched nearer or farther there, or into one cache
//! alone, comes close (19.3 to 22), but the next two or three lines do (23.1 to 23.5). Fetching only the first lines of each page
//! (0.84 to 0.97 of the speed of `1-none` with Q4_K) or only each second to eighth line (0.47 to 1.02) gained nothing either.
//! Several streams have to be long: with 1 MiB of weights at a time instead of 128 KiB for a thread, a 1.1B model in Q4_K_M is read
//! 1.05 to 1.08 times as fast by two streams without fetching as by one (AVX-512 VNNI, one thread and two), and 1.01 to 1.09 times
//! with AVX2 where both fetch far; with 128 KiB the two were no faster than the one. In Q8_0 (AVX2, one thread) two that are not
//! fetched ahead are 1.2 times as fast as one that is. With 2 MiB, Q4_K_M is 1.04 to 1.09 times as fast again with one thread (VNNI),
//! and no faster with two; 4 MiB give as much, and four streams gain nothing. One stream gains nothing from larger pieces.
//! On a Xeon (VNNI, one thread, Q4_K) nothing reads faster than `2-far` and `4-far`: 4 to 12 or 48 KiB ahead instead of 24 gave
//! 0.97 to 1.05, each second or fourth line alone 0.91 to 1.1, no line asked for twice where blocks do not divide a unit's 0.99
//! to 1.01, in measurements that differ by as much from time to time.
//! With several tiles of rows only the first fetches what is behind its panels: with 8 and 16 rows a Zen 3 is 1.01 to 1.03
//! times as fast, from memory too (Q8_0; with Q4_K 1.00 and 1.02).
//! With 2 to 16 rows, `1-far` is 1.04 to 1.4 times as fast as `1-none` (with 4 rows of Q8_0 and VNNI 0.97), and 1.0 to 1.3 times
//! as fast as `1-near` (there 0.95).
//! Activations of few rows are laid out by each thread for itself. Two cores of a Zen 4 that share a third-level cache pass a
//! cache line on in 30 ns, others in 180, and to write 20 KB that the other has read takes 2 to 3 us or 10 to 12, whether they
//! were asked for to be written before or not. With two threads, and rows of norms shared out from 8 Ki elements on instead of 16,
//! 16 sequences of a model of 135M in Q8_0 are decoded 1.06 to 1.07 times as fast in the first case and 1.08 to 1.13 times in
//! the second, 8 sequences 1.02 to 1.10 times; 4 to 16 of one of 1.1B (Q4_K_M, Q8_0) 1.02 to 1.04 times, one 1.00.
//! Rows of norms and the like that stay with a thread gave 1.01 (16 sequences).
//! Of what a thread takes from its share or another's at a time, a third or a quarter instead of half gave 0.97 to 1.02.
//! What is left of threads' shares lies on a cache line for each: 1.01 with one row of a model of 135M and two threads.
//! Its small matrices are read to the end before the caller has found its next ones; that threads which wait go on to
//! fetch the caller's share, from its end, gave 1.01 with one row, and 0.96 with 16.
//! Computed one by one (AVX2, one row), its queries, keys and values were read at 18 GB/s, its gate and up at 29. So products
//! of the same activations are shared out together: that model generates 1.03 to 1.05 times as fast, one of 1.1B 0.99 to
//! 1.01 times.
//! Panels that are read side by side are described by their distance: as lists they were copied in other steps than they had
//! been written in, and such a copy waits until everything before it is written, outputs that are in no cache among it. Without
//! lists a Xeon generates 1.01 to 1.02 times as fast (AVX2 and AVX-512 VNNI), and with outputs fetched for writing before
//! they are computed 1.035 times with a model of 135M and two threads, 1.02 with 8 sequences and one, 1.00 with one of 1.1B.
//! Prefetching the descriptions of a layer's matrices when the layer begins gained too little to keep: 1.00 to 1.02 with a model
//! of 135M, 1.00 with one of 1.1B.
//!
//! Instructions are counted by `products` in `benches/instructions`. With AVX2 a block of a tile as a loop over
//! its vectors, and sums that a compiler reads and writes apart from adding to them, took a tenth more.
//!
//! Invariants: `unsafe` is confined to the modules that hold SIMD and to `out`; sizes are
//! validated when [`Weights`], [`Activations`] and [`MatMut`] meet in [`Product::new`].

mod act;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kernels;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_i8mm;
mod out;
// Without vectors rows are read.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
mod pack;
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
mod packed;
mod scalar;
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
mod streamed;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tiled;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_avx512;
#[cfg(target_arch = "x86_64")]
mod x86_bf16;

use ruvllm_abi::DType;
pub use ruvllm_abi::team::{ActChunk, ActForm};

use crate::pool::ThreadPool;
use crate::quant::{check_row, is_blocked, is_readable};
use crate::{Isa, NativeError};

pub use crate::prefetch::ReadPattern;
pub use act::{ActRows, Activations};
use out::Out;
pub use packed::PackedWeights;
pub use streamed::ReadRates;

/// The types of weights that [`matmul`] multiplies by.
pub fn weight_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| is_readable(*dtype))
}

/// A matrix of weights, `[rows, cols]`: `rows` outputs of `cols` inputs each, in the blocks of its
/// type, rows contiguous. Borrowed bytes of any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    data: &'a [u8],
    packed: Option<&'a PackedWeights>,
}

impl<'a> Weights<'a> {
    /// A view of `data` as a matrix.
    ///
    /// # Errors
    /// The type cannot be multiplied with, `cols` is not whole blocks, a dimension is 0, or `data`
    /// is not exactly `rows` rows long.
    pub fn new(
        dtype: DType,
        rows: usize,
        cols: usize,
        data: &'a [u8],
    ) -> Result<Weights<'a>, NativeError> {
        let row_bytes = dtype.bytes_for(cols).unwrap_or(0);
        check_row("weights: columns in whole blocks", dtype, cols, row_bytes)?;
        for size in [rows, cols] {
            if size == 0 {
                let what = "weights: rows and columns";
                return Err(NativeError::Shape { what, expected: 1, actual: 0 });
            }
        }
        let expected = rows.saturating_mul(row_bytes);
        NativeError::check("weights: bytes", expected, data.len())?;
        Ok(Weights { dtype, rows, cols, row_bytes, data, packed: None })
    }

    /// The same matrix with its panels, which products then read where that is faster.
    ///
    /// # Errors
    /// The panels are of another type or size.
    pub fn with_packed(self, packed: &'a PackedWeights) -> Result<Weights<'a>, NativeError> {
        if packed.fits(&self) {
            return Ok(Weights { packed: Some(packed), ..self });
        }
        Err(NativeError::Unsupported {
            what: "a product with panels",
            detail: format!("{} weights of another type or size", self.dtype),
        })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of the matrix.
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// The bytes of row `i`; empty where there is none.
    pub fn row(&self, i: usize) -> &'a [u8] {
        if i >= self.rows {
            return &[];
        }
        &self.data[i * self.row_bytes..][..self.row_bytes]
    }
}

/// Where a product goes: row `i` is `data[i * stride..][..n]`; what lies between rows is kept.
#[derive(Debug)]
pub struct MatMut<'a> {
    /// The elements, `[m, stride]`; the last row may end after `n`.
    pub data: &'a mut [f32],
    /// Elements from the start of a row to the start of the next; at least `n`.
    pub stride: usize,
}

/// The most rows of activations that a pass over weights of floats takes in registers.
const DOT_COLS: usize = 4;

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Integers.
    Ints,
    /// Floats, row by row.
    DotFloat,
    /// Panels of f32.
    PanelFloat,
    /// Panels of pairs of bf16.
    PanelPairs,
}

/// Some of the [`ActForm`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActForms([bool; 3]);

impl ActForms {
    /// None of them.
    pub const NONE: ActForms = ActForms([false; 3]);

    /// Those of both.
    #[must_use]
    pub fn and(self, other: ActForms) -> ActForms {
        ActForms(std::array::from_fn(|form| self.0[form] | other.0[form]))
    }

    /// Whether a form is among them.
    pub fn has(self, form: ActForm) -> bool {
        self.0[form as usize]
    }
}

impl From<ActForm> for ActForms {
    fn from(form: ActForm) -> ActForms {
        let mut forms = ActForms::NONE;
        forms.0[form as usize] = true;
        forms
    }
}

impl Plan {
    /// `isa` is usable; `bf16` says whether 16-bit floats may be multiplied as such. The number of
    /// rows from which panels of floats pay is measured.
    fn of(dtype: DType, isa: Isa, m: usize, bf16: bool) -> Plan {
        if is_blocked(dtype) {
            Plan::Ints
        } else if m >= 6 && isa != Isa::Scalar {
            float_panels(dtype, isa, bf16)
        } else {
            Plan::DotFloat
        }
    }

    fn form(self) -> ActForm {
        match self {
            Plan::Ints => ActForm::Ints,
            Plan::DotFloat | Plan::PanelFloat => ActForm::Floats,
            Plan::PanelPairs => ActForm::Pairs,
        }
    }

    fn is_int(self) -> bool {
        self.form() == ActForm::Ints
    }
}

/// How [`matmul`] computes a product, for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The instructions, such as `avx512-vnni`.
    pub instructions: &'static str,
    /// `int8` where activations are quantised and the products are of integers, `bf16` where they
    /// are rounded to it and its products summed as f32, else `f32`.
    pub arithmetic: &'static str,
    /// `rows` where weights are read as the file has them, `panels` where each product rearranges them for
    /// all rows of activations, `packed` where they are read from panels of [`PackedWeights`].
    pub layout: &'static str,
}

/// How [`matmul`] multiplies `m` rows of activations by weights of a type, with
/// [`Activations::allow_bf16`] or without, and `packed` where that pays or not; `None` where it cannot.
pub fn method(dtype: DType, isa: Isa, m: usize, bf16: bool, packed: bool) -> Option<Method> {
    let isa = isa.usable().widest();
    if !is_readable(dtype) {
        return None;
    }
    let plan = Plan::of(dtype, isa, m, bf16);
    let instructions = match isa {
        _ if plan == Plan::PanelPairs => "avx512-bf16",
        isa if plan.is_int() => isa.name(),
        isa => isa.plain().name(),
    };
    Some(Method {
        instructions,
        arithmetic: match plan.form() {
            ActForm::Ints => "int8",
            ActForm::Floats => "f32",
            ActForm::Pairs => "bf16",
        },
        layout: match plan {
            Plan::Ints if PackedWeights::pays(dtype, isa) && packed => "packed",
            Plan::Ints if PackedWeights::pays(dtype, isa) => "panels",
            Plan::Ints | Plan::DotFloat => "rows",
            Plan::PanelFloat | Plan::PanelPairs => "panels",
        },
    })
}

/// How tiles of plain numbers of this type are computed.
fn float_panels(dtype: DType, isa: Isa, bf16: bool) -> Plan {
    let pays = match isa.plain() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_bf16::pays(),
        _ => false,
    };
    if bf16 && pays && matches!(dtype, DType::BF16 | DType::F16) {
        Plan::PanelPairs
    } else {
        Plan::PanelFloat
    }
}

/// A product of activations with weights that can be computed: `y[m, n] = act[m, k] · w[n, k]ᵀ`.
#[derive(Debug)]
pub struct Product<'a> {
    isa: Isa,
    plan: Plan,
    job: Job<'a>,
    out: Out<'a>,
}

/// What a product multiplies. Sizes agree, and `act` has what the plan needs.
#[derive(Clone, Copy, Debug)]
struct Job<'a> {
    w: Weights<'a>,
    act: &'a Activations,
}

impl<'a> Product<'a> {
    /// The product that overwrites `y`. `act` must have been prepared in the [`Activations::forms`] for the type of `w`
    /// with the same `isa`.
    ///
    /// # Errors
    /// `act` has another `k`, was not prepared for this type, or `y` is too small; `w` was packed for other instructions.
    pub fn new(
        isa: Isa,
        w: Weights<'a>,
        act: &'a Activations,
        y: MatMut<'a>,
    ) -> Result<Product<'a>, NativeError> {
        let isa = isa.usable().widest();
        NativeError::check("matmul: columns of the activations", w.cols, act.cols())?;
        let out = Out::new(y, act.rows(), w.rows)?;
        let plan = Plan::of(w.dtype, isa, act.plan_rows(), act.bf16());
        let unsupported = |what| {
            let detail = format!("{} with {isa}", w.dtype);
            Err(NativeError::Unsupported { what, detail })
        };
        let is_empty = act.rows() == 0;
        if !is_empty && !act.has(plan.form()) {
            return unsupported("matmul with activations that were not prepared for these weights");
        }
        if !is_empty && plan.is_int() && w.packed.is_some_and(|packed| !packed.suits(isa)) {
            return unsupported("matmul with weights that were packed for other instructions");
        }
        Ok(Product { isa, plan, job: Job { w, act }, out })
    }

    /// Whether the same code computes both, from the same activations.
    fn is_like(&self, other: &Product<'_>) -> bool {
        let same_input = std::ptr::eq(self.job.act, other.job.act);
        same_input && (self.isa, self.plan) == (other.isa, other.plan)
    }
}

/// Computes one product, on all threads of `pool`.
///
/// # Errors
/// Those of [`Product::new`]. Nothing is written.
pub fn matmul(
    pool: &ThreadPool,
    isa: Isa,
    w: &Weights<'_>,
    act: &Activations,
    y: MatMut<'_>,
) -> Result<(), NativeError> {
    matmul_all(pool, &mut [Product::new(isa, *w, act, y)?]);
    Ok(())
}

/// Computes products, on all threads of `pool`. Where there are few rows, neighbours with the same activations and the
/// same kind of weights are shared out as one: threads do not wait for each other between them, and small matrices are
/// read as one large one.
pub fn matmul_all(pool: &ThreadPool, products: &mut [Product<'_>]) {
    for products in products.chunk_by_mut(|a, b| a.is_like(b)) {
        let Some(&Product { isa, plan, job, .. }) = products.first() else { continue };
        if job.act.rows() == 0 {
            continue;
        }
        // Only products that wait for memory know what is read next.
        pool.expect([]);
        match isa.plain() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if plan == Plan::PanelPairs => x86_bf16::run(pool, products),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_avx512::run(pool, isa, plan, products),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86_avx2::run(pool, isa, plan, products),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run(pool, isa, plan, products),
            _ => Out::share(products, pool, 16, 1, &scalar::run),
        }
    }
}

#[cfg(test)]
mod tests;
