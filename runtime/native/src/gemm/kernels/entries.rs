//! The functions that enable the instructions which the inner loops are compiled with.
#![allow(unsafe_code)]

use super::int::Form;
use super::packed::Streams;
use super::{ActTile, Input, Rows, Simd};
use crate::gemm::ActChunk;
use crate::gemm::out::Columns;

/// The non-inlined functions that enable the instructions of a [`Simd`]; `entries!` writes them. They are
/// safe: the value that they are called on says that the processor has the instructions.
pub(in crate::gemm) trait Entries: Simd {
    /// See [`dot_float`](super::float::dot_float).
    fn dot_float<const T: u8, const M: usize>(
        self,
        rows: &Rows<'_>,
        y: &mut Columns<'_>,
        act: Input<'_, f32>,
    );
    /// See [`dot_packed`](super::packed::dot_packed).
    fn dot_packed<const T: u8, const P: usize, const C: usize>(
        self,
        streams: &Streams<'_>,
        act: ActTile<'_>,
        y: &mut Columns<'_>,
    );
    /// See [`unpack_panel`](super::packed::unpack_panel).
    fn unpack_panel<const T: u8>(self, panel: &[u8], to: &mut [u8]);
    /// See [`lay`](crate::gemm::tiles::lay).
    fn lay(self, chunk: &ActChunk, i: usize, cols: usize, form: Form, out: &mut [u32]);
    /// See [`pack_float`](super::float::pack_float).
    fn pack_float<const T: u8>(self, rows: &Rows<'_>, from: usize, to: usize, panel: &mut [f32]);
    /// See [`Simd::tile`].
    fn tile_int<
        const G: usize,
        const SUMS: u8,
        const OFFSETS: bool,
        const P: usize,
        const C: usize,
    >(
        self,
        panels: &[u8],
        blocks: usize,
        act: ActTile<'_>,
        col: usize,
        y: &mut Columns<'_>,
    );
    /// See [`strassen::unpack_pair`](super::strassen::unpack_pair).
    fn unpack_pair(self, panel: &[u8], to: &mut [u8]);
    /// See [`strassen::tile`](super::strassen::tile).
    fn tile_strassen<const N: usize, const C: usize>(
        self,
        panels: &[u8],
        blocks: usize,
        act: ActTile<'_>,
        col: usize,
        more: bool,
        y: &mut Columns<'_>,
    );
    /// See [`tile_float`](super::float::tile_float).
    fn tile_float<const C: usize>(
        self,
        panel: &[f32],
        len: usize,
        act: Input<'_, f32>,
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
        fn $name<$(const $c: $of),*>(self, $($arg: $arg_of),*) {
            #[target_feature(enable = $features)]
            fn go<$(const $c: $of),*>($($arg: $arg_of),*) {
                // SAFETY: the instructions are enabled.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
            // SAFETY: a value of this type says that the processor has the instructions.
            unsafe { go::<$($c),*>($($arg),*) }
        }
    };
}
pub(in crate::gemm) use entry;

/// Implements [`Entries`] for `$simd` with the instructions `$features`, which are those of `$isa`, and
/// the one way to a value of it.
macro_rules! entries {
    ($simd:ty, $isa:expr, $features:literal) => {
        impl $simd {
            /// Where the processor has the instructions.
            ///
            /// # Panics
            /// It has not.
            fn new() -> Self {
                assert!($isa.is_available(), "dispatched to {}, which is missing", $isa);
                Self(())
            }
        }

        impl Entries for $simd {
            entry!($features, dot_float<T: u8, M: usize>(
                rows: &Rows<'_>,
                y: &mut Columns<'_>,
                act: Input<'_, f32>,
            ) => kernels::float::dot_float::<$simd, T, M>(rows, y, act));
            entry!($features, dot_packed<T: u8, P: usize, C: usize>(
                streams: &Streams<'_>,
                act: ActTile<'_>,
                y: &mut Columns<'_>,
            ) => kernels::packed::dot_packed::<$simd, T, P, C>(streams, act, y));
            entry!($features, unpack_panel<T: u8>(
                panel: &[u8],
                to: &mut [u8],
            ) => kernels::packed::unpack_panel::<$simd, T>(panel, to));
            entry!($features, lay<>(
                chunk: &ActChunk,
                i: usize,
                cols: usize,
                form: Form,
                out: &mut [u32],
            ) => tiles::lay(chunk, i, cols, form, out));
            entry!($features, pack_float<T: u8>(
                rows: &Rows<'_>,
                from: usize,
                to: usize,
                panel: &mut [f32],
            ) => kernels::float::pack_float::<$simd, T>(rows, from, to, panel));
            entry!($features, tile_int<
                G: usize, SUMS: u8, OFFSETS: bool, P: usize, C: usize
            >(
                panels: &[u8],
                blocks: usize,
                act: ActTile<'_>,
                col: usize,
                y: &mut Columns<'_>,
            ) => <$simd>::tile::<G, SUMS, OFFSETS, P, C>(panels, blocks, act, col, y));
            entry!($features, unpack_pair<>(
                panel: &[u8],
                to: &mut [u8],
            ) => kernels::strassen::unpack_pair::<$simd>(panel, to));
            entry!($features, tile_strassen<N: usize, C: usize>(
                panels: &[u8],
                blocks: usize,
                act: ActTile<'_>,
                col: usize,
                more: bool,
                y: &mut Columns<'_>,
            ) => kernels::strassen::tile::<$simd, N, C>(panels, blocks, act, col, more, y));
            entry!($features, tile_float<C: usize>(
                panel: &[f32],
                len: usize,
                act: Input<'_, f32>,
                col: usize,
                add: bool,
                y: &mut Columns<'_>,
            ) => kernels::float::tile_float::<$simd, C>(panel, len, act, col, add, y));
        }
    };
}
pub(in crate::gemm) use entries;
