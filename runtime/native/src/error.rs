//! The one error type of this crate: a caller handed over sizes or types that do not fit.

use ruvllm_abi::DType;

/// Why a native kernel refused a call. Nothing was written to the output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NativeError {
    /// A buffer or a dimension has the wrong size.
    #[error("{what}: expected {expected}, got {actual}")]
    Shape {
        /// The operation and the buffer or dimension in question, such as `rmsnorm: x elements`.
        what: &'static str,
        /// The size that the other arguments call for.
        expected: usize,
        /// The size that was passed.
        actual: usize,
    },
    /// The operation does not take this element type or parameter.
    #[error("{what} is not implemented for {detail}; convert the tensor or choose another type")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The element types or the parameter value that it was asked for.
        detail: String,
    },
    /// Bytes that should hold numbers do not start on a multiple of their alignment.
    #[error("{what}: data must be aligned to {align} bytes; copy it to an aligned buffer")]
    Misaligned {
        /// The operation and the buffer.
        what: &'static str,
        /// The alignment needed in bytes.
        align: usize,
    },
    /// The system has no memory left to give.
    #[error("{what}: no memory for {bytes} bytes; free some, or use a smaller model")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Its size.
        bytes: usize,
    },
}

impl NativeError {
    /// A stable identifier for logs, metrics and HTTP bodies.
    pub fn code(&self) -> &'static str {
        match self {
            NativeError::Shape { .. } => "native_shape",
            NativeError::Unsupported { .. } => "native_unsupported",
            NativeError::Misaligned { .. } => "native_misaligned",
            NativeError::OutOfMemory { .. } => "native_out_of_memory",
        }
    }

    /// `Ok` where the sizes agree, else [`NativeError::Shape`].
    ///
    /// # Errors
    /// `expected != actual`.
    pub fn check(what: &'static str, expected: usize, actual: usize) -> Result<(), NativeError> {
        if expected == actual { Ok(()) } else { Err(NativeError::Shape { what, expected, actual }) }
    }

    /// [`NativeError::Unsupported`] for one element type.
    pub fn unsupported(what: &'static str, dtype: DType) -> NativeError {
        NativeError::Unsupported { what, detail: dtype.name().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_is_wrong_and_has_a_stable_code() {
        let error = NativeError::check("rope: x elements", 128, 64).unwrap_err();
        assert_eq!(error.to_string(), "rope: x elements: expected 128, got 64");
        assert_eq!(error.code(), "native_shape");
        assert_eq!(NativeError::check("x", 3, 3), Ok(()));
        assert_eq!(NativeError::unsupported("matmul", DType::U8).code(), "native_unsupported");
    }
}
