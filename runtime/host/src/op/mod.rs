//! Operations and calls of them: what an operation is keyed by, operands and words of a call, and the
//! sizes that follow from them.

pub(crate) mod call;
pub(crate) mod key;
pub(crate) mod plan;
pub(crate) mod tensor;
