//! The macro that declares a kernel.

/// Declares a kernel: its exports, and the checks and bindings before its body runs.
///
/// `shape` lists the symbols of the manifest in order of first appearance over inputs then output,
/// and each becomes a `usize`; each `param` follows in manifest order as `f32`, `u32` or `i32`. Each
/// `input` (at most two) becomes a [`TensorView`](crate::TensorView) and `output` a
/// [`TensorMut`](crate::TensorMut) of exactly the declared extent; a dimension is a symbol, a number
/// or an expression in parentheses. With `scratch NAME;` the body also gets a
/// [`Scratch`](crate::Scratch). The body is a block of type `Result<(), Status>`; `?` works in it.
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
            let $crate::BackwardCall { mut inputs, grad_output, mut grad_inputs, scratch, mut params } =
                call;
            $(let $sym: usize = params.take()?;)*
            $(let $param: $param_ty = params.take()?;)*
            $(let $input = inputs.take::<$input_ty>(&[$($input_dim),*])?;)*
            let $grad = $crate::TensorView::<$grad_ty>::new(grad_output, &[$($grad_dim),*])?;
            $(let mut $to = grad_inputs.take::<$to_ty>(&[$($to_dim),*])?;)+
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
        $(param $param:ident: $param_ty:ty;)*
        $(input $input:ident: $input_ty:ty [$($input_dim:tt),*];)*
        output $output:ident: $output_ty:ty [$($output_dim:tt),*];
        $(scratch $scratch:ident;)?
        run $body:block
    ) => {
        $(#[$attr])*
        #[inline]
        pub fn run_kernel(call: $crate::Call<'_>) -> ::core::result::Result<(), $crate::Status> {
            let $crate::Call { mut inputs, output, scratch, mut params } = call;
            $(let $sym: usize = params.take()?;)*
            $(let $param: $param_ty = params.take()?;)*
            $(let $input = inputs.take::<$input_ty>(&[$($input_dim),*])?;)*
            let mut $output = $crate::TensorMut::<$output_ty>::new(output, &[$($output_dim),*])?;
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
