//! The functions that enable the instructions which the inner loops are compiled with.
#![allow(unsafe_code)]

use super::packed::Streams;
use super::{ActTile, Input, Rows, Simd};
use crate::gemm::out::Columns;
use crate::gemm::packed::PanelRows;

/// The non-inlined functions that enable the instructions of a [`Simd`]; `entries!` writes them.
///
/// # Safety
/// As [`Simd`].
pub(in crate::gemm) unsafe trait Entries: Simd {
    /// See [`dot_float`](super::float::dot_float).
    unsafe fn dot_float<const T: u8, const M: usize>(
        rows: &Rows,
        y: &mut Columns<'_>,
        act: Input<f32>,
    );
    /// See [`dot_packed`](super::packed::dot_packed).
    unsafe fn dot_packed<const T: u8, const P: usize, const C: usize>(
        streams: &Streams,
        act: ActTile,
        y: &mut Columns<'_>,
    );
    /// See [`unpack_panel`](super::packed::unpack_panel).
    unsafe fn unpack_panel<const T: u8>(panel: *const u8, units: usize, blocks: usize, to: *mut u8);
    /// See [`pack`](super::packed::pack).
    unsafe fn pack<const T: u8>(rows: &PanelRows<'_>, out: &mut [u8]);
    /// See [`pack_float`](super::float::pack_float).
    unsafe fn pack_float<const T: u8>(rows: &Rows, from: usize, to: usize, panel: *mut f32);
    /// See [`Simd::tile`].
    unsafe fn tile_int<
        const G: usize,
        const SUMS: u8,
        const OFFSETS: bool,
        const P: usize,
        const C: usize,
    >(
        panels: *const u8,
        blocks: usize,
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
            entry!($features, dot_float<T: u8, M: usize>(
                rows: &Rows,
                y: &mut Columns<'_>,
                act: Input<f32>,
            ) => kernels::float::dot_float::<$simd, T, M>(rows, y, act));
            entry!($features, dot_packed<T: u8, P: usize, C: usize>(
                streams: &Streams,
                act: ActTile,
                y: &mut Columns<'_>,
            ) => kernels::packed::dot_packed::<$simd, T, P, C>(streams, act, y));
            entry!($features, unpack_panel<T: u8>(
                panel: *const u8,
                units: usize,
                blocks: usize,
                to: *mut u8,
            ) => kernels::packed::unpack_panel::<$simd, T>(panel, units, blocks, to));
            entry!($features, pack<T: u8>(
                rows: &PanelRows<'_>,
                out: &mut [u8],
            ) => kernels::packed::pack::<$simd, T>(rows, out));
            entry!($features, pack_float<T: u8>(
                rows: &Rows,
                from: usize,
                to: usize,
                panel: *mut f32,
            ) => kernels::float::pack_float::<$simd, T>(rows, from, to, panel));
            entry!($features, tile_int<
                G: usize, SUMS: u8, OFFSETS: bool, P: usize, C: usize
            >(
                panels: *const u8,
                blocks: usize,
                act: ActTile,
                col: usize,
                y: &mut Columns<'_>,
            ) => <$simd>::tile::<G, SUMS, OFFSETS, P, C>(panels, blocks, act, col, y));
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
