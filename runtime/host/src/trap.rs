//! What is known of a kernel that did not return: how it left its function, where, and what it said.
//!
//! Executors fill this in as far as their engine tells. A place is that of the pack's own module, whatever
//! was made of the module before it was compiled, so that its author can look it up.

use ruvllm_manifest::escape_untrusted;
use serde::Serialize;
use std::fmt;

/// How a kernel left its function: the kinds of trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TrapKind {
    /// It ran longer than its deadline.
    Deadline,
    /// It read or wrote outside of its memory, or wrote where it may only read.
    OutOfBounds,
    /// It used an atomic instruction at an address that is no multiple of its size.
    Misaligned,
    /// It used an element that its table does not have, other than by a call.
    TableOutOfBounds,
    /// It reached an `unreachable` instruction: a panic, mostly.
    Unreachable,
    /// It recursed too deeply.
    StackOverflow,
    /// The result of a division or conversion does not fit its integer.
    IntegerOverflow,
    /// An integer was divided by zero.
    DivisionByZero,
    /// Something that is no number was converted to an integer.
    BadConversion,
    /// An indirect call found an empty element of the table.
    IndirectCallNull,
    /// An indirect call found a function of another type.
    IndirectCallSignature,
    /// An indirect call went beyond the table.
    IndirectCallOutOfBounds,
    /// Anything else.
    Other,
}

impl TrapKind {
    /// Every kind.
    pub const ALL: [TrapKind; 13] = [
        TrapKind::Deadline,
        TrapKind::OutOfBounds,
        TrapKind::Misaligned,
        TrapKind::TableOutOfBounds,
        TrapKind::Unreachable,
        TrapKind::StackOverflow,
        TrapKind::IntegerOverflow,
        TrapKind::DivisionByZero,
        TrapKind::BadConversion,
        TrapKind::IndirectCallNull,
        TrapKind::IndirectCallSignature,
        TrapKind::IndirectCallOutOfBounds,
        TrapKind::Other,
    ];

    /// A stable name in snake case, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            TrapKind::Deadline => "deadline",
            TrapKind::OutOfBounds => "out_of_bounds",
            TrapKind::Misaligned => "misaligned",
            TrapKind::TableOutOfBounds => "table_out_of_bounds",
            TrapKind::Unreachable => "unreachable",
            TrapKind::StackOverflow => "stack_overflow",
            TrapKind::IntegerOverflow => "integer_overflow",
            TrapKind::DivisionByZero => "division_by_zero",
            TrapKind::BadConversion => "bad_conversion",
            TrapKind::IndirectCallNull => "indirect_call_null",
            TrapKind::IndirectCallSignature => "indirect_call_signature",
            TrapKind::IndirectCallOutOfBounds => "indirect_call_out_of_bounds",
            TrapKind::Other => "other",
        }
    }
}

/// For people.
impl fmt::Display for TrapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrapKind::Deadline => "deadline passed",
            TrapKind::OutOfBounds => "out of bounds memory access",
            TrapKind::Misaligned => "unaligned atomic access",
            TrapKind::TableOutOfBounds => "out of bounds table access",
            TrapKind::Unreachable => "`unreachable` reached, as by a panic",
            TrapKind::StackOverflow => "call stack exhausted",
            TrapKind::IntegerOverflow => "integer overflow",
            TrapKind::DivisionByZero => "integer division by zero",
            TrapKind::BadConversion => "invalid conversion to integer",
            TrapKind::IndirectCallNull => "indirect call of an empty table element",
            TrapKind::IndirectCallSignature => "indirect call of a function of another type",
            TrapKind::IndirectCallOutOfBounds => "indirect call beyond the table",
            TrapKind::Other => "trap",
        })
    }
}

/// A kernel that did not return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trap {
    /// Which trap.
    pub kind: TrapKind,
    /// What the executor says; empty where the rest says it all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The access, where one of memory trapped and the executor knows of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<MemoryAccess>,
    /// Where it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Box<CodeLocation>>,
    /// What the kernel had said before, see [`ruvllm_abi::message`]; empty where it said nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// An access of memory that trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryAccess {
    /// The address of the first byte that the kernel could not reach; `None` where the executor checks
    /// bounds without keeping it.
    pub offset: Option<u64>,
    /// How many bytes the instruction reads or writes; `None` of one whose operands say how many.
    pub size: Option<u32>,
    /// Whether it writes.
    pub write: bool,
    /// Bytes that the memory has.
    pub memory: u64,
}

/// Where a kernel trapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeLocation {
    /// The function, by its name in the module, or else by that of its export or its number; empty where the
    /// executor does not tell.
    pub function: String,
    /// The export that the host called.
    pub called: String,
    /// The instruction in bytes from the beginning of the pack's module, then the calls that led there, from
    /// the innermost on, [`CodeLocation::MAX_FRAMES`] together at most; empty where the executor does not tell.
    pub frames: Vec<u32>,
    /// File and line, where somebody has looked the instruction up, as `ruvllm-pack` does; a host does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl CodeLocation {
    /// Instructions that are told at most.
    pub const MAX_FRAMES: usize = 8;
}

impl Trap {
    /// A trap of which nothing else is known yet.
    pub(crate) fn new(kind: TrapKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), access: None, place: None, message: String::new() }
    }

    /// Where it happened, and what the kernel said, behind what it is.
    pub(crate) fn where_and_why(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, ", in {place}")?;
        }
        said(f, &self.message)
    }
}

/// What a kernel said of its failure, behind what it is.
pub(crate) fn said(f: &mut fmt::Formatter<'_>, message: &str) -> fmt::Result {
    if message.is_empty() { Ok(()) } else { write!(f, "; it says: {}", escape_untrusted(message)) }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trap { access: Some(access), .. } => access.fmt(f)?,
            Trap { kind: TrapKind::Other, detail, .. } if !detail.is_empty() => {
                f.write_str(detail)?;
            }
            Trap { kind, .. } => kind.fmt(f)?,
        }
        self.where_and_why(f)
    }
}

impl fmt::Display for MemoryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryAccess { offset, size, write, memory } = self;
        f.write_str(if *write { "wrote" } else { "read" })?;
        match size {
            Some(1) => f.write_str(" 1 byte")?,
            Some(size) => write!(f, " {size} bytes")?,
            None => {}
        }
        match offset {
            Some(offset) if offset < memory => {
                write!(f, " at {offset:#x}, which it may only read")
            }
            Some(offset) => write!(f, " at {offset:#x}, beyond its memory of {memory:#x} bytes"),
            None => write!(f, " beyond its memory of {memory:#x} bytes"),
        }
    }
}

impl fmt::Display for CodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CodeLocation { function, called, frames, source } = self;
        if function.is_empty() {
            return write!(f, "a call of {}", escape_untrusted(called));
        }
        f.write_str(&escape_untrusted(function))?;
        if let Some(offset) = frames.first() {
            write!(f, " at {offset:#x} of the module")?;
        }
        if let Some(source) = source {
            write!(f, " ({})", escape_untrusted(source))?;
        }
        if function != called {
            write!(f, ", called by {}", escape_untrusted(called))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_serialised_kinds() {
        for kind in TrapKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn a_trap_says_what_where_and_why() {
        let mut trap = Trap::new(TrapKind::OutOfBounds, "engine");
        assert_eq!(trap.to_string(), "out of bounds memory access");
        let access =
            |offset, size, write| Some(MemoryAccess { offset, size, write, memory: 0x10000 });
        trap.access = access(Some(0x10002), Some(4), true);
        let source = Some("src/lib.rs:42".into());
        let place =
            CodeLocation { function: "f".into(), called: "go".into(), frames: vec![0x1f], source };
        trap.place = Some(Box::new(place));
        trap.message = "too\nlong".to_owned();
        assert_eq!(
            trap.to_string(),
            "wrote 4 bytes at 0x10002, beyond its memory of 0x10000 bytes, in f at 0x1f of the module \
             (src/lib.rs:42), called by go; it says: too\\u{a}long"
        );
        trap.access = access(Some(64), None, true);
        assert!(trap.to_string().starts_with("wrote at 0x40, which it may only read, in f"));
        trap.place = Some(Box::new(CodeLocation {
            function: String::new(),
            called: "go".into(),
            frames: Vec::new(),
            source: None,
        }));
        assert!(trap.to_string().contains("may only read, in a call of go; it says"), "{trap}");
        trap.access = access(None, Some(1), false);
        assert!(trap.to_string().starts_with("read 1 byte beyond its memory"), "{trap}");
    }
}
