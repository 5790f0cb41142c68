//! The functions that enable the instructions which the inner loops are compiled with.
#![allow(unsafe_code)]

use super::{ActTile, Input, Rows, Simd};
use crate::gemm::ActChunk;
use crate::gemm::out::Columns;

/// The non-inlined functions that enable the instructions of a [`Simd`]; `entries!` writes them.
///
/// # Safety
/// As [`Simd`].
pub(in crate::gemm) unsafe trait Entries: Simd {
    /// See [`dot_int`](super::int::dot_int).
    unsafe fn dot_int<const T: u8, const M: usize>(
        rows: &Rows,
        y: &mut Columns<'_>,
        act: Input<ActChunk>,
    );
    /// See [`dot_float`](super::float::dot_float).
    unsafe fn dot_float<const T: u8, const M: usize>(
        rows: &Rows,
        y: &mut Columns<'_>,
        act: Input<f32>,
    );
    /// See [`pack_int`](super::int::pack_int).
    unsafe fn pack_int<const T: u8, const G: usize>(rows: &Rows, panel: *mut u8);
    /// See [`pack_float`](super::float::pack_float).
    unsafe fn pack_float<const T: u8>(rows: &Rows, from: usize, to: usize, panel: *mut f32);
    /// See [`Simd::tile`].
    unsafe fn tile_int<
        const G: usize,
        const FOLD: usize,
        const BIAS: u32,
        const P: usize,
        const C: usize,
    >(
        panels: *const u8,
        chunks: usize,
        act: ActTile,
        col: usize,
        y: &mut Columns<'_>,
    );
    /// See [`tile_float`](super::float::tile_float).
    unsafe fn tile_float<const C: usize>(
        panel: *const f32,
        len: usize,
        act: Input<f32>,
        col: usize,
        add: bool,
        y: &mut Columns<'_>,
    );
}

/// Writes a function `$name` that computes `$body` with the instructions `$features`: `$body` is
/// inlined into one that enables them, which the function calls.
macro_rules! entry {
    (
        $features:literal,
        $name:ident <$($c:ident: $of:ty),*> ($($arg:ident: $arg_of:ty),* $(,)?) => $body:expr
    ) => {
        unsafe fn $name<$(const $c: $of),*>($($arg: $arg_of),*) {
            #[target_feature(enable = $features)]
            unsafe fn go<$(const $c: $of),*>($($arg: $arg_of),*) {
                // SAFETY: the caller's contract is the same.
                unsafe { $body }
            }
            // SAFETY: the caller's contract is the same.
            unsafe { go::<$($c),*>($($arg),*) }
        }
    };
}
pub(in crate::gemm) use entry;

/// Implements [`Entries`] for `$simd` with the instructions `$features`.
macro_rules! entries {
    ($simd:ty, $features:literal) => {
        // SAFETY: the functions inside enable what the trait's contract says the processor has.
        unsafe impl Entries for $simd {
            entry!($features, dot_int<T: u8, M: usize>(
                rows: &Rows,
                y: &mut Columns<'_>,
                act: Input<ActChunk>,
            ) => kernels::int::dot_int::<$simd, T, M>(rows, y, act));
            entry!($features, dot_float<T: u8, M: usize>(
                rows: &Rows,
                y: &mut Columns<'_>,
                act: Input<f32>,
            ) => kernels::float::dot_float::<$simd, T, M>(rows, y, act));
            entry!($features, pack_int<T: u8, G: usize>(
                rows: &Rows,
                panel: *mut u8,
            ) => kernels::int::pack_int::<$simd, T, G>(rows, panel));
            entry!($features, pack_float<T: u8>(
                rows: &Rows,
                from: usize,
                to: usize,
                panel: *mut f32,
            ) => kernels::float::pack_float::<$simd, T>(rows, from, to, panel));
            entry!($features, tile_int<
                G: usize, FOLD: usize, BIAS: u32, P: usize, C: usize
            >(
                panels: *const u8,
                chunks: usize,
                act: ActTile,
                col: usize,
                y: &mut Columns<'_>,
            ) => <$simd>::tile::<G, FOLD, BIAS, P, C>(panels, chunks, act, col, y));
            entry!($features, tile_float<C: usize>(
                panel: *const f32,
                len: usize,
                act: Input<f32>,
                col: usize,
                add: bool,
                y: &mut Columns<'_>,
            ) => kernels::float::tile_float::<$simd, C>(panel, len, act, col, add, y));
        }
    };
}
pub(in crate::gemm) use entries;
