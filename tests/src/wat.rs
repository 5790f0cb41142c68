//! Kernels in the WebAssembly text format, as small as the ABI allows.

/// A module that follows the ABI, with places where a test can make it misbehave.
#[derive(Clone, Debug)]
pub struct Module {
    /// Imports, before everything else.
    pub imports: String,
    /// The memory declaration; `(memory (export "memory") 1 256)` by default, which is shared where there are threads.
    pub memory: String,
    /// The first byte that belongs to the host; 1024 by default.
    pub heap_base: u32,
    /// Further fields: globals, tables, functions, start.
    pub fields: String,
    /// The name under which the entry point is exported; `rmsnorm_forward` by default.
    pub entry_point: String,
    /// Whether the entry point is for threads, of which each computes rows of its own; its locals `$index` and
    /// `$count` tell which.
    pub threads: bool,
    /// Instructions at the start of the entry point, with `$desc: i32` (the descriptor) and
    /// `$rows`, `$dim` (unset as yet) as locals.
    pub prologue: String,
    /// Instructions at the end, when the output is written, with the addresses `$out` and
    /// `$out_end` as locals; the status 0 is returned after them.
    pub epilogue: String,
}

impl Default for Module {
    fn default() -> Self {
        Self {
            imports: String::new(),
            memory: r#"(memory (export "memory") 1 256)"#.to_owned(),
            heap_base: 1024,
            fields: String::new(),
            entry_point: "rmsnorm_forward".to_owned(),
            threads: false,
            prologue: String::new(),
            epilogue: String::new(),
        }
    }
}

impl Module {
    /// A module whose entry point is for threads.
    pub fn threaded() -> Module {
        let memory = r#"(memory (export "memory") 1 256 shared)"#.to_owned();
        Module { memory, threads: true, ..Module::default() }
    }

    /// Traps where a condition on `$calls` holds, the number of the calls of an instance, this one
    /// among them.
    pub fn trapping(condition: &str) -> Module {
        Module {
            fields: "(global $calls (mut i32) (i32.const 0))".to_owned(),
            prologue: format!(
                "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                 (if ({condition}) (then unreachable))"
            ),
            ..Module::default()
        }
    }
}

/// An rmsnorm kernel that is right, but for calls of `dim` columns, where it does something first.
pub fn but_for(dim: u32, instructions: &str) -> Module {
    let prologue = format!(
        "(if (i32.eq (i32.load offset=4 (i32.load offset=32 (local.get $desc))) (i32.const {dim}))
          (then {instructions}))"
    );
    Module { prologue, ..Module::default() }
}

/// A kernel with threads whose entry point `run` copies the words of its input to its output, those whose places leave
/// `$index` when they are divided by `$count`: for [`crate::custom_entry`], which gives it time. With further fields,
/// and with instructions that each thread begins and ends with, which have the locals `$d` (the descriptor), `$n`
/// (bytes of the output), `$out` and `$i`.
pub fn threaded_copy(fields: &str, begin: &str, end: &str) -> Vec<u8> {
    assemble(&format!(
        r#"(module
  (memory (export "memory") 1 2 shared)
  (global (export "__heap_base") i32 (i32.const 1024))
  {fields}
  (func (export "run") (param $d i32) (param $index i32) (param $count i32) (result i32)
    (local $i i32) (local $n i32) (local $out i32)
    (local.set $out (i32.load offset=16 (local.get $d)))
    (local.set $n (i32.load offset=20 (local.get $d)))
    {begin}
    (local.set $i (i32.shl (local.get $index) (i32.const 2)))
    (block $done
      (loop $copy
        (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
        (i32.store (i32.add (local.get $out) (local.get $i))
          (i32.load (i32.add (i32.load (local.get $d)) (local.get $i))))
        (local.set $i (i32.add (local.get $i) (i32.shl (local.get $count) (i32.const 2))))
        (br $copy)))
    {end}
    (i32.const 0)))"#
    ))
}

/// Instructions that a thread leaves when all `$count` of a call have come to them, by counts in static memory at this
/// multiple of 4. They spin for as long as the deadline lets them.
pub fn meet(at: u32) -> String {
    let gone = at + 64;
    format!(
        "(drop (i32.atomic.rmw.add (i32.const {at}) (i32.const 1)))
         (loop $come
           (br_if $come (i32.lt_u (i32.atomic.load (i32.const {at})) (local.get $count))))
         ;; The last to go sets both counts back, and nobody goes before.
         (if (i32.eq (i32.atomic.rmw.add (i32.const {gone}) (i32.const 1))
                     (i32.sub (local.get $count) (i32.const 1)))
           (then (i32.atomic.store (i32.const {gone}) (i32.const 0))
                 (i32.atomic.store (i32.const {at}) (i32.const 0))))
         (loop $go (br_if $go (i32.atomic.load (i32.const {at}))))"
    )
}

/// Narrows `$rows` rows from `$x` and `$out` on to those of one thread: of `count` threads the one of an `index` has
/// those from `rows * index / count` to `rows * (index + 1) / count`.
const OWN_ROWS: &str = "
    (local.set $i (i32.div_u (i32.mul (local.get $rows) (local.get $index)) (local.get $count)))
    (local.set $rows (i32.sub
      (i32.div_u (i32.mul (local.get $rows) (i32.add (local.get $index) (i32.const 1)))
        (local.get $count))
      (local.get $i)))
    (local.set $i (i32.shl (i32.mul (local.get $i) (local.get $dim)) (i32.const 2)))
    (local.set $x (i32.add (local.get $x) (local.get $i)))
    (local.set $out (i32.add (local.get $out) (local.get $i)))";

/// A correct scalar `rmsnorm(f32, f32) -> f32`, summed in f64, with the module's places filled in.
///
/// With [`Module::default`] it is a good kernel that admission takes.
pub fn rmsnorm_f32(module: &Module) -> Vec<u8> {
    let Module { imports, memory, heap_base, fields, entry_point, threads, prologue, epilogue } =
        module;
    let (thread, own_rows) = match threads {
        false => ("", ""),
        true => ("(param $index i32) (param $count i32)", OWN_ROWS),
    };
    assemble(&format!(
        r#"(module
  {imports}
  {memory}
  (global (export "__heap_base") i32 (i32.const {heap_base}))
  {fields}
  (func (export "{entry_point}") (param $desc i32) {thread} (result i32)
    (local $x i32) (local $w i32) (local $out i32) (local $out_end i32)
    (local $rows i32) (local $dim i32) (local $eps f64)
    (local $i i32) (local $sum f64) (local $scale f64) (local $v f64)
    {prologue}
    (local.set $x (i32.load offset=0 (local.get $desc)))
    (local.set $w (i32.load offset=8 (local.get $desc)))
    (local.set $out (i32.load offset=16 (local.get $desc)))
    (local.set $out_end (i32.add (local.get $out) (i32.load offset=20 (local.get $desc))))
    (local.set $i (i32.load offset=32 (local.get $desc)))
    (local.set $rows (i32.load offset=0 (local.get $i)))
    (local.set $dim (i32.load offset=4 (local.get $i)))
    (local.set $eps (f64.promote_f32 (f32.load offset=8 (local.get $i))))
    {own_rows}
    (block $done
      (br_if $done (i32.eqz (local.get $dim)))
      (loop $row
        (br_if $done (i32.eqz (local.get $rows)))
        (local.set $rows (i32.sub (local.get $rows) (i32.const 1)))
        (local.set $sum (f64.const 0))
        (local.set $i (i32.const 0))
        (loop $square
          (local.set $v (f64.promote_f32 (f32.load
            (i32.add (local.get $x) (i32.shl (local.get $i) (i32.const 2))))))
          (local.set $sum (f64.add (local.get $sum) (f64.mul (local.get $v) (local.get $v))))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $square (i32.lt_u (local.get $i) (local.get $dim))))
        (local.set $scale (f64.div (f64.const 1) (f64.sqrt (f64.add (local.get $eps)
          (f64.div (local.get $sum) (f64.convert_i32_u (local.get $dim)))))))
        (local.set $i (i32.const 0))
        (loop $write
          (f32.store (local.get $out) (f32.demote_f64 (f64.mul
            (f64.mul (local.get $scale) (f64.promote_f32 (f32.load (local.get $x))))
            (f64.promote_f32 (f32.load
              (i32.add (local.get $w) (i32.shl (local.get $i) (i32.const 2))))))))
          (local.set $x (i32.add (local.get $x) (i32.const 4)))
          (local.set $out (i32.add (local.get $out) (i32.const 4)))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $write (i32.lt_u (local.get $i) (local.get $dim))))
        (br $row)))
    (local.set $out (i32.load offset=16 (local.get $desc)))
    {epilogue}
    (i32.const 0)))"#
    ))
}

/// The function `kernel_backward` of [`rmsnorm_f32`], in f64, for the fields of a [`Module`]: right, but for
/// what is done at its beginning, with `$desc` as a local, and at its end, with the addresses `$dx` and `$dw` of
/// the gradients and `$rows`, `$dim` too.
pub fn rmsnorm_backward(prologue: &str, epilogue: &str) -> String {
    format!(
        r#"(func $at (param $base i32) (param $i i32) (result f64)
    (f64.promote_f32 (f32.load
      (i32.add (local.get $base) (i32.shl (local.get $i) (i32.const 2))))))
  (func (export "kernel_backward") (param $desc i32) (result i32)
    (local $x i32) (local $w i32) (local $dy i32) (local $dx i32) (local $dw i32)
    (local $rows i32) (local $dim i32) (local $row i32) (local $i i32) (local $to i32)
    (local $eps f64) (local $scale f64) (local $along f64) (local $normal f64)
    {prologue}
    (local.set $x (i32.load offset=0 (local.get $desc)))
    (local.set $w (i32.load offset=8 (local.get $desc)))
    (local.set $dy (i32.load offset=16 (local.get $desc)))
    (local.set $dx (i32.load offset=40 (local.get $desc)))
    (local.set $dw (i32.load offset=48 (local.get $desc)))
    (local.set $i (i32.load offset=32 (local.get $desc)))
    (local.set $rows (i32.load offset=0 (local.get $i)))
    (local.set $dim (i32.load offset=4 (local.get $i)))
    (local.set $eps (f64.promote_f32 (f32.load offset=8 (local.get $i))))
    (local.set $i (i32.const 0))
    (loop $zero
      (f32.store (i32.add (local.get $dw) (i32.shl (local.get $i) (i32.const 2))) (f32.const 0))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $zero (i32.lt_u (local.get $i) (local.get $dim))))
    (local.set $row (i32.const 0))
    (loop $rows
      (local.set $scale (f64.const 0))
      (local.set $i (i32.const 0))
      (loop $square
        (local.set $scale (f64.add (local.get $scale)
          (f64.mul (call $at (local.get $x) (local.get $i)) (call $at (local.get $x) (local.get $i)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $square (i32.lt_u (local.get $i) (local.get $dim))))
      (local.set $scale (f64.div (f64.const 1) (f64.sqrt (f64.add (local.get $eps)
        (f64.div (local.get $scale) (f64.convert_i32_u (local.get $dim)))))))
      (local.set $along (f64.const 0))
      (local.set $i (i32.const 0))
      (loop $sum
        (local.set $along (f64.add (local.get $along) (f64.mul
          (f64.mul (call $at (local.get $dy) (local.get $i)) (call $at (local.get $w) (local.get $i)))
          (f64.mul (call $at (local.get $x) (local.get $i)) (local.get $scale)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $sum (i32.lt_u (local.get $i) (local.get $dim))))
      (local.set $along (f64.div (local.get $along) (f64.convert_i32_u (local.get $dim))))
      (local.set $i (i32.const 0))
      (loop $write
        (local.set $normal
          (f64.mul (call $at (local.get $x) (local.get $i)) (local.get $scale)))
        (f32.store (i32.add (local.get $dx) (i32.shl (local.get $i) (i32.const 2)))
          (f32.demote_f64 (f64.mul (local.get $scale) (f64.sub
            (f64.mul (call $at (local.get $dy) (local.get $i)) (call $at (local.get $w) (local.get $i)))
            (f64.mul (local.get $normal) (local.get $along))))))
        (local.set $to (i32.add (local.get $dw) (i32.shl (local.get $i) (i32.const 2))))
        (f32.store (local.get $to) (f32.add (f32.load (local.get $to)) (f32.demote_f64
          (f64.mul (call $at (local.get $dy) (local.get $i)) (local.get $normal)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $write (i32.lt_u (local.get $i) (local.get $dim))))
      (local.set $i (i32.shl (local.get $dim) (i32.const 2)))
      (local.set $x (i32.add (local.get $x) (local.get $i)))
      (local.set $dy (i32.add (local.get $dy) (local.get $i)))
      (local.set $dx (i32.add (local.get $dx) (local.get $i)))
      (local.set $row (i32.add (local.get $row) (i32.const 1)))
      (br_if $rows (i32.lt_u (local.get $row) (local.get $rows))))
    (local.set $dx (i32.load offset=40 (local.get $desc)))
    {epilogue}
    (i32.const 0))"#
    )
}

/// A correct scalar `lora_apply(f32, f32) -> f32`, summed in f64, with the module's places filled in;
/// its entry point is `lora_apply_forward`. The prologue's locals are `$desc`, `$rows` and the call's
/// other extents, unset as yet; the epilogue has them set.
pub fn lora_apply_f32(module: &Module) -> Vec<u8> {
    let Module { imports, memory, heap_base, fields, prologue, epilogue, .. } = module;
    assemble(&format!(
        r#"(module
  {imports}
  {memory}
  (global (export "__heap_base") i32 (i32.const {heap_base}))
  {fields}
  ;; Element j of rank r, in groups of four elements by all ranks.
  (func $factor (param $base i32) (param $rank i32) (param $j i32) (param $r i32) (result f64)
    (f64.promote_f32 (f32.load (i32.add (local.get $base) (i32.shl
      (i32.add
        (i32.shl (i32.add (local.get $r)
          (i32.mul (local.get $rank) (i32.shr_u (local.get $j) (i32.const 2)))) (i32.const 2))
        (i32.and (local.get $j) (i32.const 3)))
      (i32.const 2))))))
  (func (export "lora_apply_forward") (param $desc i32) (result i32)
    (local $x i32) (local $a i32) (local $b i32) (local $out i32) (local $t i32)
    (local $rows i32) (local $in_dim i32) (local $rank i32) (local $out_dim i32) (local $scale f64)
    (local $i i32) (local $r i32) (local $sum f64)
    {prologue}
    (local.set $x (i32.load offset=0 (local.get $desc)))
    (local.set $a (i32.load offset=8 (local.get $desc)))
    (local.set $out (i32.load offset=16 (local.get $desc)))
    (local.set $t (i32.load offset=24 (local.get $desc)))
    (local.set $i (i32.load offset=32 (local.get $desc)))
    (local.set $rows (i32.load offset=0 (local.get $i)))
    (local.set $in_dim (i32.load offset=4 (local.get $i)))
    (local.set $rank (i32.load offset=12 (local.get $i)))
    (local.set $out_dim (i32.load offset=16 (local.get $i)))
    (local.set $scale (f64.promote_f32 (f32.load offset=20 (local.get $i))))
    (local.set $b (i32.add (local.get $a) (i32.shl (i32.mul (local.get $rank)
      (i32.shr_u (i32.add (local.get $in_dim) (i32.const 3)) (i32.const 2))) (i32.const 4))))
    (block $done
      (loop $row
        (br_if $done (i32.eqz (local.get $rows)))
        (local.set $rows (i32.sub (local.get $rows) (i32.const 1)))
        (local.set $r (i32.const 0))
        (block $projected (loop $project
          (br_if $projected (i32.ge_u (local.get $r) (local.get $rank)))
          (local.set $sum (f64.const 0))
          (local.set $i (i32.const 0))
          (block $summed (loop $sum_up
            (br_if $summed (i32.ge_u (local.get $i) (local.get $in_dim)))
            (local.set $sum (f64.add (local.get $sum) (f64.mul
              (call $factor (local.get $a) (local.get $rank) (local.get $i) (local.get $r))
              (f64.promote_f32 (f32.load
                (i32.add (local.get $x) (i32.shl (local.get $i) (i32.const 2))))))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br $sum_up)))
          (f64.store (i32.add (local.get $t) (i32.shl (local.get $r) (i32.const 3)))
            (f64.mul (local.get $scale) (local.get $sum)))
          (local.set $r (i32.add (local.get $r) (i32.const 1)))
          (br $project)))
        (local.set $i (i32.const 0))
        (block $expanded (loop $expand
          (br_if $expanded (i32.ge_u (local.get $i) (local.get $out_dim)))
          (local.set $sum (f64.const 0))
          (local.set $r (i32.const 0))
          (block $summed (loop $sum_up
            (br_if $summed (i32.ge_u (local.get $r) (local.get $rank)))
            (local.set $sum (f64.add (local.get $sum) (f64.mul
              (call $factor (local.get $b) (local.get $rank) (local.get $i) (local.get $r))
              (f64.load (i32.add (local.get $t) (i32.shl (local.get $r) (i32.const 3)))))))
            (local.set $r (i32.add (local.get $r) (i32.const 1)))
            (br $sum_up)))
          (f32.store (local.get $out) (f32.demote_f64 (local.get $sum)))
          (local.set $out (i32.add (local.get $out) (i32.const 4)))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br $expand)))
        (local.set $x (i32.add (local.get $x) (i32.shl (local.get $in_dim) (i32.const 2))))
        (br $row)))
    {epilogue}
    (i32.const 0)))"#
    ))
}

/// Assembles a module from its text.
///
/// # Panics
/// Where the text is not valid: it is part of a test.
pub fn assemble(text: &str) -> Vec<u8> {
    match wat::parse_str(text) {
        Ok(bytes) => bytes,
        Err(e) => panic!("{e}"),
    }
}
