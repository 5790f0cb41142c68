//! What a kernel returns.

use core::fmt;

/// The status an entry point returns as `i32`. Any other number counts as [`Status::InternalError`].
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The output holds the result.
    Ok = 0,
    /// An input has a size or a value that the kernel does not take.
    InvalidInput = 1,
    /// The output region does not fit the result.
    InvalidOutput = 2,
    /// The params block is too short or holds a value out of range.
    InvalidParams = 3,
    /// The scratch region is too small for this shape.
    OutOfMemory = 4,
    /// The kernel does not do this shape or this function.
    NotImplemented = 5,
    /// Anything else.
    InternalError = 6,
}

impl Status {
    /// Every status, in numeric order.
    pub const ALL: [Status; 7] = [
        Status::Ok,
        Status::InvalidInput,
        Status::InvalidOutput,
        Status::InvalidParams,
        Status::OutOfMemory,
        Status::NotImplemented,
        Status::InternalError,
    ];

    /// The status of a returned number, or `None` where the contract does not define it.
    pub const fn from_code(code: i32) -> Option<Status> {
        if code < 0 || code as usize >= Self::ALL.len() {
            return None;
        }
        Some(Self::ALL[code as usize])
    }

    /// The number that a kernel returns.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The name in the contract, such as `INVALID_INPUT`.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "OK",
            Status::InvalidInput => "INVALID_INPUT",
            Status::InvalidOutput => "INVALID_OUTPUT",
            Status::InvalidParams => "INVALID_PARAMS",
            Status::OutOfMemory => "OUT_OF_MEMORY",
            Status::NotImplemented => "NOT_IMPLEMENTED",
            Status::InternalError => "INTERNAL_ERROR",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_codes_have_no_status() {
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(-1), None);
        assert_eq!(Status::from_code(7), None);
    }
}
