//! `memory.copy` and `memory.fill` as functions of loads and stores, for the rewrites of modules.
//!
//! An engine carries the two instructions out in its own code, where a deadline does not hold and a write
//! to a page that is read-only ends the process; and some engines do not have them.

use wasm_encoder::{BlockType, Function, InstructionSink, MemArg, ValType};

/// Parameters of both functions: target; source, or the byte to fill with; length.
const TARGET: u32 = 0;
const SOURCE: u32 = 1;
const LEN: u32 = 2;
/// A local of functions that keep a pace: the length at which the chunk ends that is moved.
const CHUNK_END: u32 = 3;

/// Bytes that are moved between two looks of a [`Pace`].
const CHUNK: i32 = 4096;

/// The most bytes that one load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Widest {
    /// A vector: for engines that have SIMD.
    #[cfg(feature = "wasmtime")]
    Vector,
    /// 64 bits.
    #[cfg(feature = "wamr")]
    Word,
}

impl Widest {
    const fn bytes(self) -> i32 {
        match self {
            #[cfg(feature = "wasmtime")]
            Widest::Vector => 16,
            #[cfg(feature = "wamr")]
            Widest::Word => 8,
        }
    }

    fn load(self, code: &mut InstructionSink<'_>) {
        match self {
            #[cfg(feature = "wasmtime")]
            Widest::Vector => code.v128_load(at(0)),
            #[cfg(feature = "wamr")]
            Widest::Word => code.i64_load(at(0)),
        };
    }

    fn store(self, code: &mut InstructionSink<'_>) {
        match self {
            #[cfg(feature = "wasmtime")]
            Widest::Vector => code.v128_store(at(0)),
            #[cfg(feature = "wamr")]
            Widest::Word => code.i64_store(at(0)),
        };
    }

    /// The byte on the stack in every place.
    fn splat(self, code: &mut InstructionSink<'_>) {
        match self {
            #[cfg(feature = "wasmtime")]
            Widest::Vector => code.i8x16_splat(),
            #[cfg(feature = "wamr")]
            Widest::Word => code
                .i64_extend_i32_u()
                .i64_const(0xff)
                .i64_and()
                .i64_const(0x0101_0101_0101_0101)
                .i64_mul(),
        };
    }
}

const fn at(align: u32) -> MemArg {
    MemArg { offset: 0, align, memory_index: 0 }
}

/// What is done before each chunk, of at most [`CHUNK`] bytes.
pub(super) trait Pace {
    /// `bytes` puts the number of its bytes onto the stack.
    fn before_chunk(
        &self,
        code: &mut InstructionSink<'_>,
        bytes: &dyn Fn(&mut InstructionSink<'_>),
    );
}

/// `while len >= step { body }`.
fn while_left(code: &mut InstructionSink<'_>, step: i32, body: impl Fn(&mut InstructionSink<'_>)) {
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(LEN).i32_const(step).i32_lt_u().br_if(1);
    body(code);
    code.br(0).end().end();
}

/// The same for a step of several bytes, chunk by chunk where there is a pace.
fn while_many_left(
    code: &mut InstructionSink<'_>,
    step: i32,
    pace: Option<&dyn Pace>,
    body: impl Fn(&mut InstructionSink<'_>),
) {
    let Some(pace) = pace else { return while_left(code, step, body) };
    while_left(code, step, |code| {
        // Where no whole chunk is left, it ends with the last step.
        code.local_get(LEN).i32_const(CHUNK).i32_sub().i32_const(step - 1);
        code.local_get(LEN).i32_const(CHUNK + step - 1).i32_gt_u().select().local_set(CHUNK_END);
        pace.before_chunk(code, &|code| {
            code.local_get(LEN).local_get(CHUNK_END).i32_sub();
        });
        code.loop_(BlockType::Empty);
        body(code);
        code.local_get(LEN).local_get(CHUNK_END).i32_gt_u().br_if(0).end();
    });
}

/// A function with the locals that it needs.
fn function(pace: Option<&dyn Pace>) -> Function {
    Function::new(pace.map(|_| (1, ValType::I32)))
}

/// `local += by`.
fn advance(code: &mut InstructionSink<'_>, local: u32, by: i32) {
    code.local_get(local).i32_const(by).i32_add().local_set(local);
}

/// `memory.copy`: forwards where the target lies before the source, backwards
/// otherwise, so that ranges may overlap. What is moved at once is read whole before it is written.
pub(super) fn copy(widest: Widest, pace: Option<&dyn Pace>) -> Function {
    let mut function = function(pace);
    let mut code = function.instructions();
    let code = &mut code;
    let move_one = |code: &mut InstructionSink<'_>, step: i32| {
        if step == 1 {
            code.i32_load8_u(at(0)).i32_store8(at(0));
        } else {
            widest.load(code);
            widest.store(code);
        }
    };
    code.local_get(TARGET).local_get(SOURCE).i32_le_u().if_(BlockType::Empty);
    for (step, pace) in [(widest.bytes(), pace), (1, None)] {
        while_many_left(code, step, pace, |code| {
            code.local_get(TARGET).local_get(SOURCE);
            move_one(code, step);
            advance(code, TARGET, step);
            advance(code, SOURCE, step);
            advance(code, LEN, -step);
        });
    }
    code.else_();
    for (step, pace) in [(widest.bytes(), pace), (1, None)] {
        while_many_left(code, step, pace, |code| {
            advance(code, LEN, -step);
            for base in [TARGET, SOURCE] {
                code.local_get(base).local_get(LEN).i32_add();
            }
            move_one(code, step);
        });
    }
    code.end().end();
    function
}

/// `memory.fill`.
pub(super) fn fill(widest: Widest, pace: Option<&dyn Pace>) -> Function {
    let mut function = function(pace);
    let mut code = function.instructions();
    let code = &mut code;
    for (step, pace) in [(widest.bytes(), pace), (1, None)] {
        while_many_left(code, step, pace, |code| {
            code.local_get(TARGET).local_get(SOURCE);
            if step == 1 {
                code.i32_store8(at(0));
            } else {
                widest.splat(code);
                widest.store(code);
            }
            advance(code, TARGET, step);
            advance(code, LEN, -step);
        });
    }
    code.end();
    function
}
