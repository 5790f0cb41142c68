//! Rearranges rows as a file has them into the panels that [`packed`](super::packed) describes.
//!
//! What lies together in a panel is four neighbouring elements of each row (or two of either of two blocks), which in a
//! file are four neighbouring bytes, or nibbles or bits of such. So the bytes of sixteen rows are brought together in
//! words of four, and the rest is a few operations on the words of all rows, which need no special
//! instructions.

use ruvllm_abi::DType;

use super::Weights;
use super::packed::{BLOCK, LINE, Layout, PANEL};
use crate::quant::word;

/// Four bytes of each row.
type Words = [u32; PANEL];

/// Bytes of the largest unit that a row can end within: two blocks of `Q8_0`.
const MAX_PARTIAL: usize = 68;

/// Writes the panel of the rows of `weights` from `first` on to `out`, where so asked with two blocks side by side.
pub(super) fn pack_panel(weights: &Weights<'_>, first: usize, side_by_side: bool, out: &mut [u8]) {
    let (dtype, layout) = (weights.dtype, Layout::of(weights.dtype));
    let block = dtype.layout();
    let bytes = layout.blocks * BLOCK / block.elems * block.bytes;
    let rows: [&[u8]; PANEL] =
        std::array::from_fn(|lane| weights.row((first + lane).min(weights.rows - 1)));
    for (u, unit) in out.chunks_exact_mut(layout.unit_bytes()).enumerate() {
        let start = u * bytes;
        if start + bytes <= weights.row_bytes {
            pack_unit(dtype, &rows, start, side_by_side, unit);
        } else {
            let padded = rows.map(|row| {
                let (mut padded, rest) = ([0; MAX_PARTIAL], &row[start..]);
                padded[..rest.len()].copy_from_slice(rest);
                padded
            });
            pack_unit(dtype, &padded.each_ref().map(|row| &row[..bytes]), 0, side_by_side, unit);
        }
    }
}

/// Writes a unit of a panel, of what `rows` have from byte `start` on.
fn pack_unit(
    dtype: DType,
    rows: &[&[u8]; PANEL],
    start: usize,
    side_by_side: bool,
    unit: &mut [u8],
) {
    let layout = Layout::of(dtype);
    let (header, blocks) = unit.split_at_mut(layout.header);
    let header = header.as_chunks_mut::<LINE>().0;
    let blocks = blocks.chunks_exact_mut(layout.block_bytes()).map(|block| block.as_chunks_mut().0);
    let halves = |to: &mut [u8; LINE], i: usize, at: usize| {
        for (to, row) in to[2 * PANEL * i..].as_chunks_mut().0.iter_mut().zip(rows) {
            *to = [row[start + at], row[start + at + 1]];
        }
    };
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            halves(&mut header[0], 0, 0);
            halves(&mut header[0], 1, 2);
            scales_and_mins(&four_words(rows, start), &mut header[1..]);
            let (low, high) = if dtype == DType::Q4_K { (16, None) } else { (48, Some(16)) };
            for (b, lines) in blocks.enumerate() {
                if side_by_side {
                    let words = four_words(rows, start + low + b / 2 * 32 + b % 2 * 16);
                    for (words, line) in words.iter().zip(lines) {
                        put(line, |lane| two_of_two_blocks(words[lane]));
                    }
                    continue;
                }
                for i in 0..2 {
                    let words = four_words(rows, start + low + b / 2 * 32 + 16 * i);
                    nibbles(&words, b % 2 == 1, &mut lines[2 * i..]);
                    if let Some(high) = high {
                        let words = four_words(rows, start + high + 16 * i);
                        add_bits(&words, b, 4 * i, &mut lines[4]);
                    }
                }
            }
        }
        DType::Q6_K => {
            halves(&mut header[0], 0, 208);
            for (words, line) in four_words(rows, start + 192).iter().zip(&mut header[1..]) {
                by_bytes(words, line);
            }
            for (b, lines) in blocks.enumerate() {
                let (half, quarter) = (b / 4, b % 4);
                for i in 0..2 {
                    let low = four_words(rows, start + 64 * half + 32 * (quarter % 2) + 16 * i);
                    let high = four_words(rows, start + 128 + 32 * half + 16 * i);
                    let six = |g: usize, lane: usize| {
                        low[g][lane] >> (quarter / 2 * 4) & 0x0f0f_0f0f
                            | (high[g][lane] >> (2 * quarter) & 0x0303_0303) << 4
                    };
                    for (g, line) in lines[3 * i..][..3].iter_mut().enumerate() {
                        put(line, |lane| {
                            six(g, lane) | (six(3, lane) >> (2 * g) & 0x0303_0303) << 6
                        });
                    }
                }
            }
        }
        _ => {
            let bytes = dtype.layout().bytes;
            for (b, lines) in blocks.enumerate() {
                let at = b * bytes;
                halves(&mut header[0], b, at);
                if matches!(dtype, DType::Q4_1 | DType::Q5_1) {
                    halves(&mut header[1], b, at + 2);
                }
                if dtype == DType::Q8_0 {
                    for i in 0..2 {
                        let words = four_words(rows, start + at + 2 + 16 * i);
                        for (words, line) in words.iter().zip(&mut lines[4 * i..]) {
                            put(line, |lane| words[lane] ^ 0x8080_8080);
                        }
                    }
                    continue;
                }
                let low = start + at + bytes - BLOCK / 2;
                let words = four_words(rows, low);
                nibbles(&words, false, lines);
                nibbles(&words, true, &mut lines[2..]);
                if matches!(dtype, DType::Q5_0 | DType::Q5_1) {
                    let high: Words = std::array::from_fn(|lane| word(rows[lane], low - 4));
                    put(&mut lines[4], |lane| {
                        // The bits of four neighbouring elements, each in the byte of its element.
                        let spread =
                            |bits: u32| (bits | bits << 7 | bits << 14 | bits << 21) & 0x0101_0101;
                        (0..8).fold(0, |all, g| all | spread(high[lane] >> (4 * g) & 15) << g)
                    });
                }
            }
        }
    }
}

/// Four words of each row, from byte `at` on.
#[inline(always)]
fn four_words(rows: &[&[u8]; PANEL], at: usize) -> [Words; 4] {
    let mut words = [[0; PANEL]; 4];
    // In squares, which compilers transpose in registers.
    for lane in (0..PANEL).step_by(4) {
        let square: [[u32; 4]; 4] = std::array::from_fn(|row| {
            let bytes = &rows[lane + row][at..at + 16];
            std::array::from_fn(|i| word(bytes, 4 * i))
        });
        for (i, words) in words.iter_mut().enumerate() {
            words[lane..][..4].copy_from_slice(&square.map(|row| row[i]));
        }
    }
    words
}

/// Writes a line of a panel, word by word.
#[inline(always)]
fn put(line: &mut [u8; LINE], word: impl Fn(usize) -> u32) {
    for (lane, to) in line.as_chunks_mut().0.iter_mut().enumerate() {
        *to = word(lane).to_le_bytes();
    }
}

/// Writes two lines of the lower or upper nibbles of words, of two each.
#[inline(always)]
fn nibbles(words: &[Words; 4], upper: bool, lines: &mut [[u8; LINE]]) {
    for ([even, odd], line) in words.as_chunks().0.iter().zip(lines) {
        if upper {
            put(line, |lane| even[lane] >> 4 & 0x0f0f_0f0f | odd[lane] & 0xf0f0_f0f0);
        } else {
            put(line, |lane| even[lane] & 0x0f0f_0f0f | odd[lane] << 4 & 0xf0f0_f0f0);
        }
    }
}

/// Of four bytes, of which each has an element of a block and, above it, one of the next block: two bytes for either
/// block, which have its first two elements and, above them, the other two.
#[inline(always)]
fn two_of_two_blocks(word: u32) -> u32 {
    let two = |block: u32| (block | block >> 12) & 0xffff;
    two(word & 0x0f0f_0f0f) | two(word >> 4 & 0x0f0f_0f0f) << 16
}

/// Writes a line of bit `from` of each byte of words, of each word higher than of that before, the first as bit `to`;
/// where that is 0, it replaces what was there before.
#[inline(always)]
fn add_bits(words: &[Words; 4], from: usize, to: usize, line: &mut [u8; LINE]) {
    for (lane, line) in line.as_chunks_mut().0.iter_mut().enumerate() {
        let mut bits = if to == 0 { 0 } else { u32::from_le_bytes(*line) };
        for (g, words) in words.iter().enumerate() {
            bits |= (words[lane] >> from & 0x0101_0101) << (to + g);
        }
        *line = bits.to_le_bytes();
    }
}

/// Writes the 6-bit scales and mins of a unit of `Q4_K` or `Q5_K`, whose layout is GGML's.
fn scales_and_mins([_, low, high, rest]: &[Words; 4], lines: &mut [[u8; LINE]]) {
    let lower = |words: &Words| words.map(|word| word & 0x3f3f_3f3f);
    let upper = |words: &Words, shift: usize| -> Words {
        std::array::from_fn(|lane| {
            words[lane] >> 2 & 0x3030_3030 | rest[lane] >> shift & 0x0f0f_0f0f
        })
    };
    let parts = [lower(low), upper(low, 0), lower(high), upper(high, 4)];
    for (words, line) in parts.iter().zip(lines) {
        by_bytes(words, line);
    }
}

/// Writes the first bytes of words, the second, the third and the fourth.
#[inline(always)]
fn by_bytes(words: &Words, line: &mut [u8; LINE]) {
    for (i, to) in line.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        for (to, word) in to.iter_mut().zip(words) {
            *to = word.to_le_bytes()[i];
        }
    }
}
