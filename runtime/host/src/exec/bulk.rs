//! `memory.copy` and `memory.fill` as functions of loads and stores, for the rewrites of modules.
//!
//! An engine carries the two instructions out in its own code, where a deadline does not hold and a write
//! to a page that is read-only ends the process; and some engines do not have them.

use wasm_encoder::{BlockType, Function, InstructionSink, MemArg};

/// Parameters of both functions: target; source, or the byte to fill with; length.
const TARGET: u32 = 0;
const SOURCE: u32 = 1;
pub(super) const LEN: u32 = 2;

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

/// `while len >= step { body }`.
fn while_left(code: &mut InstructionSink<'_>, step: i32, body: impl Fn(&mut InstructionSink<'_>)) {
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(LEN).i32_const(step).i32_lt_u().br_if(1);
    body(code);
    code.br(0).end().end();
}

/// `local += by`.
fn advance(code: &mut InstructionSink<'_>, local: u32, by: i32) {
    code.local_get(local).i32_const(by).i32_add().local_set(local);
}

/// `memory.copy`, after what `begin` does: forwards where the target lies before the source, backwards
/// otherwise, so that ranges may overlap. What is moved at once is read whole before it is written.
pub(super) fn copy(widest: Widest, begin: impl FnOnce(&mut InstructionSink<'_>)) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    let code = &mut code;
    begin(code);
    let move_one = |code: &mut InstructionSink<'_>, step: i32| {
        if step == 1 {
            code.i32_load8_u(at(0)).i32_store8(at(0));
        } else {
            widest.load(code);
            widest.store(code);
        }
    };
    code.local_get(TARGET).local_get(SOURCE).i32_le_u().if_(BlockType::Empty);
    for step in [widest.bytes(), 1] {
        while_left(code, step, |code| {
            code.local_get(TARGET).local_get(SOURCE);
            move_one(code, step);
            advance(code, TARGET, step);
            advance(code, SOURCE, step);
            advance(code, LEN, -step);
        });
    }
    code.else_();
    for step in [widest.bytes(), 1] {
        while_left(code, step, |code| {
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

/// `memory.fill`, after what `begin` does.
pub(super) fn fill(widest: Widest, begin: impl FnOnce(&mut InstructionSink<'_>)) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    let code = &mut code;
    begin(code);
    for step in [widest.bytes(), 1] {
        while_left(code, step, |code| {
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
