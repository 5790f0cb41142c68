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
/// On wasm this exports the entry point and `kernel_info`. Elsewhere it defines
/// `run_kernel(Call) -> Result<(), Status>` alone, and an empty `main`, so that the same file builds
/// for the author's machine.
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
