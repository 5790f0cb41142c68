//! The macro that declares a kernel.

/// Whether the first extent of a shape is written like this.
#[doc(hidden)]
pub const fn leads(name: &str, shape: &[&str]) -> bool {
    !shape.is_empty() && equal(name, shape[0])
}

/// The index of a name in a list.
///
/// # Panics
/// It is not there; in a constant, the compiler says so.
#[doc(hidden)]
pub const fn index_of(name: &str, names: &[&str]) -> usize {
    let mut index = 0;
    while index < names.len() {
        if equal(name, names[index]) {
            return index;
        }
        index += 1;
    }
    panic!("`threads by` names a symbol of the shape")
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut same = a.len() == b.len();
    let mut at = 0;
    while same && at < a.len() {
        same = a[at] == b[at];
        at += 1;
    }
    same
}

/// Declares a kernel: its exports, and the checks and bindings before its body runs.
///
/// `shape` lists the symbols of the manifest in order of first appearance over inputs then output,
/// and each becomes a `usize`; each `param` follows in manifest order as `f32`, `u32` or `i32`. Each
/// `input` (at most two) becomes a [`TensorView`](crate::TensorView) and `output` a
/// [`TensorMut`](crate::TensorMut) of exactly the declared extent; a dimension is a symbol, a number
/// or an expression in parentheses. With `scratch NAME;` the body also gets a
/// [`Scratch`](crate::Scratch). The body is a block of type `Result<(), Status>`; `?` works in it.
///
/// With `threads by SYMBOL;` behind the shape the kernel has threads, as many as its `threads` in `pack.toml` says.
/// The symbol is the first extent of the output, and of what inputs have a part for each of its rows. The body runs
/// in each thread on a part of them: where the symbol stands it has the number of those rows. So a kernel whose
/// rows are independent of each other has threads by this one line.
///
/// A kernel whose operation has a gradient may end in a `backward` part, which becomes `kernel_backward`:
/// it sees the same symbols, params, inputs and scratch, `grad_output` as a view, and each `grad_input`, of the
/// first input and of the second, as a tensor to be written in full. What they hold is said in
/// [`abi::contract`](crate::abi::contract).
///
/// ```
/// # use ruvllm_kernel_sdk::prelude::*;
/// kernel! {
///     fn scale_forward;
///     revision 1;
///     shape [rows, dim];
///     param factor: f32;
///     input x: f32 [rows, dim];
///     output y: f32 [rows, dim];
///     run {
///         y.as_mut_slice().iter_mut().zip(x.as_slice()).for_each(|(y, x)| *y = factor * x);
///         Ok(())
///     }
///     backward {
///         grad_output dy: f32 [rows, dim];
///         grad_input dx: f32 [rows, dim];
///         run {
///             dx.as_mut_slice().iter_mut().zip(dy.as_slice()).for_each(|(dx, dy)| *dx = factor * dy);
///             Ok(())
///         }
///     }
/// }
/// ```
///
/// With threads, each of which gets its rows:
///
/// ```
/// # use ruvllm_kernel_sdk::prelude::*;
/// kernel! {
///     fn scale_rows_forward;
///     revision 1;
///     shape [rows, dim];
///     threads by rows;
///     input x: f32 [rows, dim];
///     input factors: f32 [rows];
///     output y: f32 [rows, dim];
///     run {
///         for ((y, x), factor) in y.rows_mut(dim).zip(x.rows(dim)).zip(factors.as_slice()) {
///             y.iter_mut().zip(x).for_each(|(y, x)| *y = factor * x);
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// On wasm this exports the entry point, `kernel_info` and `kernel_backward`. Elsewhere it defines
/// `run_kernel(Call) -> Result<(), Status>` and `run_backward(BackwardCall) -> Result<(), Status>`, and an
/// empty `main`, so that the same file builds for the author's machine.
#[macro_export]
macro_rules! kernel {
    (
        $(#[$attr:meta])*
        fn $entry:ident;
        revision $revision:literal;
        shape [$($sym:ident),* $(,)?];
        $(threads by $divided:ident;)?
        $(param $param:ident: $param_ty:ty;)*
        $(input $input:ident: $input_ty:ty [$($input_dim:tt),*];)*
        output $output:ident: $output_ty:ty [$($output_dim:tt),*];
        $(scratch $scratch:ident;)?
        run $body:block
        backward {
            grad_output $grad:ident: $grad_ty:ty [$($grad_dim:tt),*];
            $(grad_input $to:ident: $to_ty:ty [$($to_dim:tt),*];)+
            run $backward:block
        }
    ) => {
        $crate::kernel! {
            $(#[$attr])*
            fn $entry;
            revision $revision;
            shape [$($sym),*];
            $(threads by $divided;)?
            $(param $param: $param_ty;)*
            $(input $input: $input_ty [$($input_dim),*];)*
            output $output: $output_ty [$($output_dim),*];
            $(scratch $scratch;)?
            run $body
        }

        /// The gradients of the entry point.
        ///
        /// # Errors
        /// What the kernel does not take.
        #[inline]
        pub fn run_backward(
            call: $crate::BackwardCall<'_>,
        ) -> ::core::result::Result<(), $crate::Status> {
            let $crate::BackwardCall {
                mut inputs, grad_output, mut grad_inputs, mut scratch, mut params,
            } = call;
            $(let $sym: usize = params.take()?;)*
            $(let $param: $param_ty = params.take()?;)*
            $(
                let $input = $crate::kernel!(
                    @tensor scratch, inputs.take::<$input_ty>(&[$($input_dim),*]),
                    $input, $input_ty, [$($input_dim),*]
                );
            )*
            let $grad = $crate::kernel!(
                @tensor scratch, $crate::TensorView::<$grad_ty>::new(grad_output, &[$($grad_dim),*]),
                $grad, $grad_ty, [$($grad_dim),*]
            );
            $(
                let mut $to = $crate::kernel!(
                    @tensor scratch, grad_inputs.take::<$to_ty>(&[$($to_dim),*]),
                    $to, $to_ty, [$($to_dim),*]
                );
            )+
            $(let mut $scratch = scratch;)?
            let _ = (&mut inputs, &mut params, &mut grad_inputs, $(&$sym,)* $(&$param,)* $(&$input,)*);
            $backward
        }

        /// Gives the gradients of the entry point.
        ///
        /// # Safety
        /// As for the entry point.
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kernel_backward(desc: *const $crate::BackwardDescriptor) -> i32 {
            // SAFETY: the contract of this function is the one `Memory::linear` asks for.
            let memory = unsafe { $crate::Memory::linear() };
            let opened = $crate::BackwardCall::open(memory, desc as usize);
            let status = match opened.and_then(run_backward) {
                Ok(()) => $crate::Status::Ok,
                Err(status) => status,
            };
            status.code()
        }
    };
    (
        $(#[$attr:meta])*
        fn $entry:ident;
        revision $revision:literal;
        shape [$($sym:ident),* $(,)?];
        threads by $divided:ident;
        $(param $param:ident: $param_ty:ty;)*
        $(input $input:ident: $input_ty:ty [$($input_dim:tt),*];)*
        output $output:ident: $output_ty:ty [$($output_dim:tt),*];
        $(scratch $scratch:ident;)?
        run $body:block
    ) => {
        $(#[$attr])*
        #[inline]
        pub fn run_kernel(call: $crate::Call<'_>) -> ::core::result::Result<(), $crate::Status> {
            const {
                assert!(
                    $crate::leads(stringify!($divided), &[$(stringify!($output_dim)),*]),
                    "`threads by` names the first extent of the output, which threads divide",
                );
            }
            let $crate::Call { mut inputs, output, mut scratch, mut params, thread } = call;
            $(let $sym: usize = params.take()?;)*
            $(let $param: $param_ty = params.take()?;)*
            $(
                let $input = $crate::kernel!(
                    @tensor scratch, inputs.take::<$input_ty>(&[$($input_dim),*]),
                    $input, $input_ty, [$($input_dim),*]
                );
                let $input = if $crate::leads(stringify!($divided), &[$(stringify!($input_dim)),*]) {
                    $input.part(thread, $divided)?
                } else {
                    $input
                };
            )*
            let is_empty = $divided == 0;
            let $divided = thread.rows($divided).len();
            let mut $output = $crate::kernel!(
                @tensor scratch, $crate::TensorMut::<$output_ty>::new(output, &[$($output_dim),*]),
                $output, $output_ty, [$($output_dim),*]
            );
            $(let mut $scratch = scratch;)?
            let _ = (&mut inputs, &mut params, &mut $output);
            // More threads than rows.
            if $divided == 0 && !is_empty {
                return Ok(());
            }
            $body
        }

        /// The entry point.
        ///
        /// # Safety
        /// Only the host calls it, on as many threads as it says, and leaves memory alone meanwhile.
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $entry(
            desc: *const $crate::KernelDescriptor,
            index: u32,
            count: u32,
        ) -> i32 {
            const ROWS: usize = $crate::index_of(stringify!($divided), &[$(stringify!($sym)),*]);
            // SAFETY: the contract of this function is the one `Memory::linear` asks for: what else accesses that
            // memory are other threads, each its part of it.
            let memory = unsafe { $crate::Memory::linear() };
            let thread = $crate::Thread::new(index, count);
            let opened = $crate::Call::open_part(memory, desc as usize, thread, ROWS);
            let status = match opened.and_then(run_kernel) {
                Ok(()) => $crate::Status::Ok,
                Err(status) => status,
            };
            status.code()
        }

        $crate::kernel!(@info $revision);
    };
    (
        $(#[$attr:meta])*
        fn $entry:ident;
        revision $revision:literal;
        shape [$($sym:ident),* $(,)?];
        $(param $param:ident: $param_ty:ty;)*
        $(input $input:ident: $input_ty:ty [$($input_dim:tt),*];)*
        output $output:ident: $output_ty:ty [$($output_dim:tt),*];
        $(scratch $scratch:ident;)?
        run $body:block
    ) => {
        $(#[$attr])*
        #[inline]
        pub fn run_kernel(call: $crate::Call<'_>) -> ::core::result::Result<(), $crate::Status> {
            let $crate::Call { mut inputs, output, mut scratch, mut params, .. } = call;
            $(let $sym: usize = params.take()?;)*
            $(let $param: $param_ty = params.take()?;)*
            $(
                let $input = $crate::kernel!(
                    @tensor scratch, inputs.take::<$input_ty>(&[$($input_dim),*]),
                    $input, $input_ty, [$($input_dim),*]
                );
            )*
            let mut $output = $crate::kernel!(
                @tensor scratch, $crate::TensorMut::<$output_ty>::new(output, &[$($output_dim),*]),
                $output, $output_ty, [$($output_dim),*]
            );
            $(let mut $scratch = scratch;)?
            let _ = (&mut inputs, &mut params, &mut $output);
            $body
        }

        /// The entry point.
        ///
        /// # Safety
        /// Only the host calls it, one call at a time, and leaves memory alone meanwhile.
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $entry(desc: *const $crate::KernelDescriptor) -> i32 {
            // SAFETY: the contract of this function is the one `Memory::linear` asks for.
            let memory = unsafe { $crate::Memory::linear() };
            let status = match $crate::Call::open(memory, desc as usize).and_then(run_kernel) {
                Ok(()) => $crate::Status::Ok,
                Err(status) => status,
            };
            status.code()
        }

        $crate::kernel!(@info $revision);
    };
    // The tensor, or the end of the kernel with a message that names it.
    (@tensor $scratch:ident, $made:expr, $name:ident, $ty:ty, $shape:tt) => {
        match $made {
            Ok(tensor) => tensor,
            Err(status) => {
                let what = concat!(
                    "`", stringify!($name), "` is not ", stringify!($ty), " ", stringify!($shape)
                );
                return Err($scratch.fail(status, what));
            }
        }
    };
    (@info $revision:literal) => {
        /// Writes what this module is.
        ///
        /// # Safety
        /// As for the entry point.
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kernel_info(out: *mut $crate::KernelInfo) -> i32 {
            // SAFETY: the contract of this function is the one `Memory::linear` asks for.
            let memory = unsafe { $crate::Memory::linear() };
            $crate::view::write_info(memory, out as usize, $revision).code()
        }

        #[cfg(not(target_family = "wasm"))]
        #[allow(dead_code)]
        fn main() {
            let _ = run_kernel;
        }
    };
}
