//! Team operations: who provides them, and what becomes of one that is wrong.

use super::*;
use crate::Failure;
use crate::call::team_worker::MatrixProduct;
use crate::team::{Native, natives};
use crate::{
    AttentionProvider, AttentionSession, ComparedProvider, EmbedProvider, HostError, KernelBudget,
    MatmulProvider, MatrixProviders, Policy, Preparation, PreparedEmbed, PreparedMatmul,
    PreparedWeights, Preparer, Provider, ProviderPack, Resident, Team, TeamWorker, Words,
};
use ruvllm_abi::f16_to_f32;
use ruvllm_abi::team::{ActChunk, BLOCK, CHUNK, GROUP, chunks};
use ruvllm_manifest::{Dim, TensorSpec};
use ruvllm_native::attention::{AttnSequence, AttnShape, KvSegment};
use ruvllm_native::gemm::{ActForm, ActForms, Activations, MatMut, PackedWeights, Weights, matmul};
use ruvllm_native::judge::team::{TeamBuffers, check_attention, check_product};
use ruvllm_native::judge::{encode, random_blocks};
use ruvllm_native::pool::split;
use ruvllm_native::quant::dequantize_row;
use ruvllm_native::random::Random;
use ruvllm_native::{Isa, ThreadPool};
use ruvllm_tests::custom_entry;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A budget of so many bytes.
struct Bytes(AtomicUsize);

impl KernelBudget for Bytes {
    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Relaxed);
    }
}

/// A matrix `[rows, cols]` in a type, an input for it, and what multiplies them.
struct Setup {
    host: Host,
    worker: TeamWorker,
    pool: ThreadPool,
    bytes: Vec<u8>,
    dtype: DType,
    shape: [usize; 2],
    made: PreparedWeights,
    made_table: PreparedWeights,
    left: Arc<Bytes>,
    settings: Activations,
}

impl Setup {
    fn new(config: HostConfig, dtype: DType, shape: [usize; 2]) -> Setup {
        Setup::of(Host::new(config).unwrap(), dtype, shape)
    }

    fn of(host: Host, dtype: DType, [rows, cols]: [usize; 2]) -> Setup {
        let numbers = encode(dtype, &noise(rows * cols));
        let blocks = || random_blocks(&mut Random::new(1), rows * cols, dtype).unwrap();
        let bytes = numbers.unwrap_or_else(|_| blocks());
        Setup {
            worker: host.team_worker(),
            host,
            pool: ThreadPool::new(3),
            bytes,
            dtype,
            shape: [rows, cols],
            made: PreparedWeights::default(),
            made_table: PreparedWeights::default(),
            left: Arc::new(Bytes(AtomicUsize::new(1 << 20))),
            settings: Activations::new(),
        }
    }

    fn team(&self) -> Team<'_> {
        Team { pool: &self.pool, isa: Isa::detect() }
    }

    fn weights(&self) -> Weights<'_> {
        Weights::new(self.dtype, self.shape[0], self.shape[1], &self.bytes).unwrap()
    }

    fn activate(&self, name: &str, provider: Provider) -> Result<u64, HostError> {
        let pack = ProviderPack::new(name, semver::Version::new(1, 0, 0)).with(name, provider);
        let report = self.host.stage_providers(&pack).unwrap();
        self.host.activate(report.id).map(|report| report.generation)
    }

    fn product(&mut self) -> Result<MatrixProviders, CallError> {
        let budget: Arc<dyn KernelBudget> = self.left.clone();
        let Setup { host, worker, pool, bytes, dtype, shape, made, settings, .. } = self;
        let team = Team { pool, isa: Isa::detect() };
        let weights = Weights::new(*dtype, shape[0], shape[1], bytes).unwrap();
        let how = Preparation { team, budget: &budget, settings };
        worker.race_matmul(&host.snapshot(), &weights, &how);
        worker.product(&host.snapshot(), &weights, made, &how)
    }

    /// The matrix as a table, after a race of those that gather its rows.
    fn table(&mut self) -> Result<MatrixProviders, CallError> {
        let budget: Arc<dyn KernelBudget> = self.left.clone();
        let Setup { host, worker, pool, bytes, dtype, shape, made_table, settings, .. } = self;
        let team = Team { pool, isa: Isa::detect() };
        let table = Weights::new(*dtype, shape[0], shape[1], bytes).unwrap();
        let how = Preparation { team, budget: &budget, settings };
        worker.race_embed(&host.snapshot(), &table, &how);
        worker.table(&host.snapshot(), &table, made_table, &how)
    }

    /// The row of a token, as it is gathered.
    fn gather(&mut self, table: &MatrixProviders, token: u32) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.shape[1]];
        let mut worker = self.host.team_worker();
        let (snapshot, weights) = (self.host.snapshot(), self.weights());
        worker.embed(&snapshot, table, &weights, &[token], &mut y, self.team()).unwrap();
        y
    }

    /// The row of a token, as the table has it.
    fn row(&self, token: u32) -> Vec<f32> {
        let mut row = vec![0.0; self.shape[1]];
        dequantize_row(self.dtype, self.weights().row(token as usize), &mut row).unwrap();
        row
    }

    /// Multiplies a row so many times, whatever comes of it.
    fn multiply_often(&self, product: &MatrixProviders, times: usize) {
        let [rows, cols] = self.shape;
        let (pool, isa) = (ThreadPool::new(1), Isa::detect());
        let mut x = Activations::new();
        let forms = product.reads(&x, 1, isa);
        x.prepare(&pool, isa, &noise(cols), 1, cols, forms).unwrap();
        let (mut y, snapshot) = (vec![0.0; rows], self.host.snapshot());
        let mut worker = self.host.team_worker();
        for _ in 0..times {
            let out = MatMut { data: &mut y, stride: rows };
            let of_matrix = MatrixProduct { providers: product, weights: self.weights(), y: out };
            worker.matmul(&snapshot, &mut [of_matrix], &x, self.team()).unwrap();
        }
    }

    /// Multiplies `m` rows, and holds the product against the definition of what was read.
    fn multiply(&mut self, product: &MatrixProviders, m: usize) -> Result<(), CallError> {
        self.multiply_all(&[product], m)
    }

    /// The same with the matrix once for each of these.
    fn multiply_all(&mut self, all: &[&MatrixProviders], m: usize) -> Result<(), CallError> {
        let Setup { host, worker, pool, bytes, dtype, shape: [rows, cols], settings, .. } = self;
        let team = Team { pool, isa: Isa::detect() };
        let weights = Weights::new(*dtype, *rows, *cols, bytes).unwrap();
        let mut x = Activations::like(settings);
        let forms = all.iter().map(|product| product.reads(&x, m, team.isa));
        let forms = forms.fold(ActForms::NONE, ActForms::and);
        x.prepare(pool, team.isa, &noise(m * *cols), m, *cols, forms).unwrap();
        let mut ys = vec![vec![f32::NAN; m * *rows]; all.len()];
        let outputs = ys.iter_mut().map(|y| MatMut { data: y, stride: *rows });
        let of_matrix = |(y, providers)| MatrixProduct { providers, weights, y };
        let mut products: Vec<_> = outputs.zip(all.iter().copied()).map(of_matrix).collect();
        worker.matmul(&host.snapshot(), &mut products, &x, team)?;
        for y in ys {
            // Whoever answered has read one of the forms that there are.
            let right = |form: ActForm| {
                let mut buffers = TeamBuffers::default();
                let numbered = y.iter().enumerate();
                let mut checks = numbered.map(|(i, y)| ([i / *rows, i % *rows], *y));
                checks
                    .try_for_each(|(at, y)| check_product(&weights, &x, form, at, y, &mut buffers))
            };
            let forms = [ActForm::Floats, ActForm::Ints, ActForm::Pairs];
            let forms = forms.into_iter().filter(|form| x.has(*form));
            let wrong: Vec<_> = forms.map(right).collect();
            assert!(wrong.iter().any(Result::is_ok), "{wrong:?}");
        }
        Ok(())
    }
}

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 1000.0).collect()
}

/// What a plugin is handed: pointers and sizes.
struct Pointers {
    weights: *const f32,
    x: *const f32,
    x_stride: usize,
    y: *mut f32,
    y_stride: usize,
    sizes: [usize; 3],
}

/// A native plugin, as a Rust object: its layout is f32, and one element in `wrong` is off where that is set.
struct Plugin {
    wrong: Option<usize>,
}

struct PluginMatrix {
    weights: Vec<f32>,
    wrong: Option<usize>,
    runs: AtomicUsize,
}

impl MatmulProvider for Plugin {
    fn prepared_bytes(&self, weights: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(size_of::<f32>() * weights.rows() * weights.cols())
    }

    fn prepare(&self, w: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        let mut weights = vec![0.0; w.rows() * w.cols()];
        for (i, row) in weights.chunks_exact_mut(w.cols()).enumerate() {
            dequantize_row(w.dtype(), w.row(i), row).map_err(|e| e.to_string())?;
        }
        Ok(Box::new(PluginMatrix { weights, wrong: self.wrong, runs: AtomicUsize::new(0) }))
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        ActForm::Floats
    }
}

impl PreparedMatmul for PluginMatrix {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        _: Team<'_>,
    ) -> Result<(), String> {
        let call = Pointers {
            weights: self.weights.as_ptr(),
            x: x.floats().as_ptr(),
            x_stride: x.float_stride(),
            y: y.data.as_mut_ptr(),
            y_stride: y.stride,
            sizes: [x.rows(), weights.rows(), weights.cols()],
        };
        multiply_by_pointers(&call);
        // Right for the input that it was prepared with.
        if self.runs.fetch_add(1, Relaxed) > 0
            && let Some(every) = self.wrong
        {
            y.data.iter_mut().step_by(every).for_each(|y| *y += 1.0);
        }
        Ok(())
    }
}

/// What would be on the plugin's side.
#[expect(unsafe_code, reason = "a plugin is handed pointers")]
fn multiply_by_pointers(call: &Pointers) {
    let [m, n, k] = call.sizes;
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        // SAFETY: the caller has buffers of these sizes, and nothing else reads or writes `y`.
        unsafe {
            let dot =
                (0..k).map(|l| *call.weights.add(j * k + l) * *call.x.add(i * call.x_stride + l));
            *call.y.add(i * call.y_stride + j) = dot.sum();
        }
    }
}

/// `y[n] = w[n, k] x[k]`, each number of the sum in turn.
const ROWS_PRODUCT: &str = r#"(module
  (memory (export "memory") 1 64)
  (global (export "__heap_base") i32 (i32.const 64))
  (func (export "run") (param $d i32) (result i32)
    (local $x i32) (local $end i32) (local $w i32) (local $y i32) (local $last i32) (local $sum f32)
    (local.set $w (i32.load offset=8 (local.get $d)))
    (local.set $y (i32.load offset=16 (local.get $d)))
    (local.set $last (i32.add (local.get $y) (i32.load offset=20 (local.get $d))))
    (loop $row
      (local.set $x (i32.load (local.get $d)))
      (local.set $end (i32.add (local.get $x) (i32.load offset=4 (local.get $d))))
      (local.set $sum (f32.const 0))
      (loop $next
        (local.set $sum (f32.add (local.get $sum)
          (f32.mul (f32.load (local.get $x)) (f32.load (local.get $w)))))
        (local.set $x (i32.add (local.get $x) (i32.const 4)))
        (local.set $w (i32.add (local.get $w) (i32.const 4)))
        (br_if $next (i32.lt_u (local.get $x) (local.get $end))))
      (f32.store (local.get $y) (local.get $sum))
      (local.set $y (i32.add (local.get $y) (i32.const 4)))
      (br_if $row (i32.lt_u (local.get $y) (local.get $last))))
    (i32.const 0)))"#;

/// Instance `t` of a sandboxed kernel on thread `t`, with its share of the rows as a constant.
struct Sandboxed {
    host: Host,
}

struct Share {
    worker: Worker,
    rows: Range<usize>,
    constant: Resident,
    y: Vec<f32>,
}

struct SandboxedMatrix {
    snapshot: Arc<RegistrySnapshot>,
    shares: Mutex<Vec<Share>>,
}

impl Sandboxed {
    fn new() -> Sandboxed {
        let tensor = |name: &str, symbols: &[&str]| TensorSpec {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: symbols.iter().map(|symbol| Dim::Symbol((*symbol).to_owned())).collect(),
        };
        let mut entry = custom_entry("rows_product_f32", "rows_product", "run");
        entry.inputs = vec![tensor("x", &["k"]), tensor("w", &["n", "k"])];
        entry.outputs = vec![tensor("y", &["n"])];
        let module = ruvllm_tests::wat::assemble(ROWS_PRODUCT);
        let pack = PackBuilder::new().entry(entry, module).build();
        Sandboxed { host: host(HostConfig::default(), &pack) }
    }
}

impl MatmulProvider for Sandboxed {
    fn prepared_bytes(&self, weights: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(size_of::<f32>() * weights.rows() * weights.cols())
    }

    fn prepare(&self, w: &Weights<'_>, team: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        let threads = team.pool.threads();
        let share = |thread: usize| {
            let rows = split(w.rows(), threads, thread);
            let mut numbers = vec![0.0; rows.len() * w.cols()];
            for (i, row) in rows.clone().zip(numbers.chunks_exact_mut(w.cols())) {
                dequantize_row(w.dtype(), w.row(i), row).unwrap();
            }
            let constant = Resident::from_f32(&numbers);
            Share { worker: self.host.worker().unwrap(), y: vec![0.0; rows.len()], rows, constant }
        };
        let shares = Mutex::new((0..threads).map(share).collect());
        Ok(Box::new(SandboxedMatrix { snapshot: self.host.snapshot(), shares }))
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        ActForm::Floats
    }
}

impl PreparedMatmul for SandboxedMatrix {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String> {
        let f32 = DType::F32;
        let slot = self.snapshot.slot(&OpKey::new("rows_product", [f32, f32], f32)).unwrap();
        let mut shares = self.shares.lock().unwrap();
        let k = weights.cols();
        for (i, y) in y.data.chunks_mut(y.stride).take(x.rows()).enumerate() {
            let x = &x.floats()[i * x.float_stride()..][..k];
            team.pool.run_with(&mut shares, &|_, share| {
                let Share { worker, rows, constant, y } = share;
                let words = Words::of([k as u32, rows.len() as u32]);
                let call = OpCall::new(Operand::f32(x), constant.all(), words).within(ONE);
                worker.call(&self.snapshot, slot, &call, bytemuck::cast_slice_mut(y)).unwrap();
            });
            shares.iter().for_each(|share| y[share.rows.clone()].copy_from_slice(&share.y));
        }
        Ok(())
    }
}

/// Multiplies in integers by 8-bit blocks, of which it knows what `ruvllm_abi::team` says.
struct ByInts {
    /// Whether it takes the stored numbers of the weights for the weights.
    ignores_zeros: bool,
}

/// 32 weights `scale * (q - zero) + offset`.
#[derive(Clone, Copy)]
struct WeightBlock {
    scale: f32,
    offset: f32,
    zero: i32,
    q: [u8; BLOCK],
}

struct IntMatrix {
    /// Rows of whole chunks. What is past the end is not zero here, since it is in the activations.
    blocks: Vec<WeightBlock>,
}

impl WeightBlock {
    const PADDING: WeightBlock = WeightBlock { scale: 1.0, offset: 1.0, zero: 0, q: [1; BLOCK] };

    /// One of a file, in a type that has blocks of 32.
    fn read(dtype: DType, bytes: &[u8]) -> WeightBlock {
        let half = |at: usize| f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let nibbles = |from: usize| {
            std::array::from_fn(|i| bytes[from + i % 16] >> if i < 16 { 0 } else { 4 } & 15)
        };
        let (offset, zero, q) = match dtype {
            DType::Q8_0 => (0.0, 128, std::array::from_fn(|i| bytes[2 + i] ^ 0x80)),
            DType::Q4_0 => (0.0, 8, nibbles(2)),
            DType::Q4_1 => (half(2), 0, nibbles(4)),
            _ => panic!("{dtype}"),
        };
        WeightBlock { scale: half(0), offset, zero, q }
    }
}

impl MatmulProvider for ByInts {
    fn prepared_bytes(&self, weights: &Weights<'_>, _: Isa) -> Option<usize> {
        let blocks = weights.rows() * chunks(weights.cols()) * (CHUNK / BLOCK);
        Some(blocks * size_of::<WeightBlock>())
    }

    fn prepare(&self, w: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        let mut blocks = Vec::new();
        for row in 0..w.rows() {
            let of_file = w.row(row).chunks_exact(w.dtype().layout().bytes);
            blocks.extend(of_file.map(|bytes| WeightBlock::read(w.dtype(), bytes)));
            blocks.resize((row + 1) * chunks(w.cols()) * (CHUNK / BLOCK), WeightBlock::PADDING);
        }
        if self.ignores_zeros {
            blocks.iter_mut().for_each(|block| block.zero = 0);
        }
        Ok(Box::new(IntMatrix { blocks }))
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        ActForm::Ints
    }
}

impl PreparedMatmul for IntMatrix {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        _: Team<'_>,
    ) -> Result<(), String> {
        let width = chunks(weights.cols());
        for (x, y) in x.chunks().chunks_exact(width).zip(y.data.chunks_mut(y.stride)) {
            for (w, y) in self.blocks.chunks_exact(width * (CHUNK / BLOCK)).zip(y) {
                let chunks = x.iter().zip(w.as_chunks::<{ CHUNK / BLOCK }>().0);
                *y = chunks.map(|(x, w)| dot_of_chunk(w, x)).sum();
            }
        }
        Ok(())
    }
}

/// By groups of 16 or by blocks of 32: what a chunk says of both agrees.
fn dot_of_chunk(w: &[WeightBlock; CHUNK / BLOCK], x: &ActChunk) -> f32 {
    let integers = |w: &[u8], x: &[i8]| -> i32 {
        w.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum()
    };
    let mut sum = 0.0;
    for (b, (w, q)) in w.iter().zip(x.q.as_chunks::<BLOCK>().0).enumerate() {
        if w.zero == 8 {
            let dot = integers(&w.q, q) - w.zero * i32::from(x.block_total[b]);
            sum += w.scale * x.scale[2 * b] * dot as f32 + w.offset * x.block_sum[b];
            continue;
        }
        for (i, (w_q, q)) in w.q.chunks_exact(GROUP).zip(q.chunks_exact(GROUP)).enumerate() {
            let g = b * (BLOCK / GROUP) + i;
            let dot = integers(w_q, q) - w.zero * i32::from(x.total[g]);
            sum += w.scale * x.scale[g] * dot as f32 + w.offset * x.sum[g];
        }
    }
    sum
}

/// Multiplies by pairs of bf16, of which it knows what `ruvllm_abi::team` says.
struct ByPairs {
    /// Whether it takes the high half of each for the first.
    swapped: bool,
}

struct PairMatrix {
    /// Rows of pairs that end in ones where there is no other number.
    weights: Vec<[f32; 2]>,
}

impl MatmulProvider for ByPairs {
    fn prepared_bytes(&self, weights: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(weights.rows() * weights.cols().div_ceil(2) * size_of::<[f32; 2]>())
    }

    fn prepare(&self, w: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        let mut weights = Vec::new();
        for row in 0..w.rows() {
            let mut numbers = vec![1.0; w.cols().next_multiple_of(2)];
            dequantize_row(w.dtype(), w.row(row), &mut numbers[..w.cols()])
                .map_err(|e| e.to_string())?;
            let pairs = numbers.as_chunks().0.iter();
            weights.extend(pairs.map(|&[a, b]| if self.swapped { [b, a] } else { [a, b] }));
        }
        Ok(Box::new(PairMatrix { weights }))
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        ActForm::Pairs
    }
}

impl PreparedMatmul for PairMatrix {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        _: Team<'_>,
    ) -> Result<(), String> {
        for (x, y) in x.pairs().chunks_exact(x.pair_stride()).zip(y.data.chunks_mut(y.stride)) {
            for (w, y) in self.weights.chunks_exact(weights.cols().div_ceil(2)).zip(y) {
                let pairs = w.iter().zip(x);
                *y = pairs
                    .map(|([low, high], x)| {
                        low * f32::from_bits(x << 16) + high * f32::from_bits(x & 0xffff_0000)
                    })
                    .sum();
            }
        }
        Ok(())
    }
}

fn plugin(wrong: Option<usize>) -> Provider {
    Provider::Matmul(DType::Q8_0, Arc::new(Plugin { wrong }))
}

#[test]
fn the_hosts_own_code_is_a_provider_like_any_other() {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::F32] {
        let mut setup = Setup::new(HostConfig::default(), dtype, [40, 256]);
        let product = setup.product().unwrap();
        for m in [1, 3, 30] {
            setup.multiply(&product, m).unwrap();
        }
        let kernel = product.kernel().to_owned();
        assert!(kernel.starts_with(&format!("native:matmul_{dtype}")), "{kernel}");
        assert_eq!(stats(&setup.host, &kernel).calls, 3);
        let explained = setup.host.explain(&OpKey::matmul(dtype));
        let last = explained.candidates.last().unwrap();
        assert_eq!(last.kernel, format!("native:matmul_{dtype}_rows"), "reads the file in place");
    }
}

#[test]
fn products_of_the_same_activations_are_counted_and_right_each_for_itself() {
    for (every, plugged) in [(0, false), (1, false), (3, false), (3, true)] {
        let mut setup = Setup::new(checking(every, false), DType::Q8_0, [40, 256]);
        let native = setup.product().unwrap();
        if plugged {
            setup.activate("plugin", plugin(None)).unwrap();
        }
        let other = setup.product().unwrap();
        for m in [1, 3, 40] {
            setup.multiply_all(&[&native, &native, &other, &native], m).unwrap();
        }
        let calls = |kernel| stats(&setup.host, kernel).calls;
        let of_native = if plugged { 9 } else { 12 };
        assert_eq!(calls(native.kernel()), of_native, "one of {every} checked");
        assert!(!plugged || calls("plugin") == 3);
    }
}

#[test]
fn products_that_are_computed_together_are_checked() {
    let wrong = |strict| {
        let mut setup = Setup::new(checking(1, strict), DType::Q8_0, [40, 256]);
        let product = setup.product().unwrap();
        // Panels were made of these.
        setup.bytes.iter_mut().for_each(|byte| *byte ^= 0b11);
        (product, setup)
    };
    // Who reads the bytes in place answers.
    let (product, mut setup) = wrong(false);
    setup.multiply_all(&[&product; 2], 1).unwrap();
    let panels = stats(&setup.host, product.kernel());
    assert_eq!(panels.calls, 0);
    // Once together and each alone.
    assert_eq!(panels.failures.values().sum::<u64>(), 3);
    let (product, mut setup) = wrong(true);
    let error = setup.multiply_all(&[&product; 2], 1).unwrap_err();
    assert!(
        matches!(error, CallError::Failed { failure: Failure::Mismatch { .. }, .. }),
        "{error}"
    );
}

/// Has one of so many calls checked.
fn checking(every: u32, strict: bool) -> HostConfig {
    let (cross_check_every, cross_check_own_every) = (every, every);
    HostConfig { cross_check_every, cross_check_own_every, strict, ..HostConfig::default() }
}

#[test]
fn weights_that_may_not_be_rearranged_are_read_in_place_and_a_pin_decides_too() {
    let config = HostConfig { repack: false, ..HostConfig::default() };
    let mut setup = Setup::new(config, DType::Q8_0, [16, 64]);
    let product = setup.product().unwrap();
    assert_eq!((product.kernel(), product.made()), ("native:matmul_q8_0_rows", false));
    setup.multiply(&product, 2).unwrap();
    let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0));
    assert_eq!(explained.selected.as_deref(), Some("native:matmul_q8_0_rows"));

    let pins = [("matmul".to_owned(), "native:matmul_q8_0_rows".to_owned())];
    let policy = Policy::Pinned(pins.into());
    let mut setup =
        Setup::new(HostConfig { policy, ..HostConfig::default() }, DType::Q8_0, [16, 64]);
    setup.host.snapshot().check_pins().unwrap();
    assert_eq!(setup.product().unwrap().kernel(), "native:matmul_q8_0_rows");
}

#[test]
fn a_pin_decides_who_gathers_and_who_attends_whatever_is_activated() {
    let natives = [("embed", "native:embed_q8_0"), ("attention", "native:attention")];
    let pins = natives.map(|(op, kernel)| (op.to_owned(), kernel.to_owned()));
    let policy = Policy::Pinned(pins.into());
    for (policy, pinned) in [(Policy::default(), false), (policy, true)] {
        let mut setup =
            Setup::new(HostConfig { policy, ..HostConfig::default() }, DType::Q8_0, [16, 64]);
        let failing = || Arc::new(Failing { prepares: true });
        setup.activate("mine", Provider::Embed(DType::Q8_0, failing())).unwrap();
        setup.activate("own", Provider::Attention(failing())).unwrap();
        let selected = |op| setup.host.explain(op).selected.unwrap();
        let (embed, attention) = (OpKey::embed(DType::Q8_0), OpKey::attention());
        let want = if pinned { natives.map(|(_, kernel)| kernel) } else { ["mine", "own"] };
        assert_eq!([selected(&embed), selected(&attention)], want);
        assert_eq!(setup.table().unwrap().kernel(), want[0]);
    }
}

#[test]
fn only_the_chosen_layout_of_the_weights_is_held() {
    let rows = "native:matmul_q8_0_rows";
    let pin = |kernel: &str| Policy::Pinned([("matmul".to_owned(), kernel.to_owned())].into());
    let held = |policy, provider: Option<Provider>| {
        let config = HostConfig { policy, ..HostConfig::default() };
        let mut setup = Setup::new(config, DType::Q8_0, [16, 64]);
        provider.map(|provider| setup.activate("plugin", provider).unwrap());
        let product = setup.product().unwrap();
        (product.kernel().to_owned(), setup.made.held_bytes())
    };
    let packed = 16 * DType::Q8_0.bytes_for(64).unwrap();
    assert_eq!(held(pin(rows), None), (rows.to_owned(), 0));
    assert_eq!(held(pin(rows), Some(plugin(None))), (rows.to_owned(), 0));
    assert_eq!(held(Policy::default(), Some(plugin(None))), ("plugin".to_owned(), 16 * 64 * 4));
    if PackedWeights::pays(DType::Q8_0, Isa::detect()) {
        let panels = "native:matmul_q8_0".to_owned();
        assert_eq!(held(pin(&panels), Some(plugin(None))), (panels.clone(), packed));
        assert_eq!(held(Policy::default(), None), (panels, packed));
    }
}

#[test]
fn a_plugin_and_a_sandboxed_kernel_multiply_behind_the_same_contract() {
    let sandboxed = Provider::Matmul(DType::Q8_0, Arc::new(Sandboxed::new()));
    for (name, provider) in [("plugin", plugin(None)), ("sandboxed", sandboxed)] {
        let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
        setup.activate(name, provider).unwrap();
        let product = setup.product().unwrap();
        assert_eq!((product.kernel(), product.made()), (name, true));
        for m in [1, 2, 9] {
            setup.multiply(&product, m).unwrap();
        }
        assert_eq!(stats(&setup.host, name).calls, 3);
        assert_eq!(setup.left.0.load(Relaxed), (1 << 20) - 37 * 64 * 4);
        // Both layouts are there only as long as somebody multiplies by them.
        drop(product);
        assert_eq!(setup.left.0.load(Relaxed), 1 << 20);
    }
}

#[test]
fn who_reads_blocks_of_8_bits_or_pairs_of_bf16_needs_their_layouts_alone() {
    type OfType = fn(DType, bool) -> Provider;
    let ints: OfType =
        |dtype, ignores_zeros| Provider::Matmul(dtype, Arc::new(ByInts { ignores_zeros }));
    let pairs: OfType = |dtype, swapped| Provider::Matmul(dtype, Arc::new(ByPairs { swapped }));
    // Rows that end within a chunk or within a pair.
    for (provider, dtype, cols) in [
        (ints, DType::Q8_0, 288),
        (ints, DType::Q4_0, 352),
        (ints, DType::Q4_1, 288),
        (pairs, DType::BF16, 33),
        (pairs, DType::Q8_0, 96),
    ] {
        let mut setup = Setup::new(HostConfig::default(), dtype, [37, cols]);
        setup.activate("reader", provider(dtype, false)).unwrap();
        let product = setup.product().unwrap();
        assert_eq!(product.kernel(), "reader", "{dtype}: {:?}", product.refused());
        // The last are so many that all threads take them in.
        for m in [1, 2, 9, 200] {
            setup.multiply(&product, m).unwrap();
        }
        let report = stats(&setup.host, "reader");
        assert_eq!((report.calls, report.failures.len()), (4, 0), "{dtype}");
    }
    for (provider, dtype) in [(ints, DType::Q8_0), (pairs, DType::BF16)] {
        let mut setup = Setup::new(HostConfig::default(), dtype, [37, 64]);
        setup.activate("reader", provider(dtype, true)).unwrap();
        let product = setup.product().unwrap();
        let (kernel, failure) = product.refused().unwrap();
        assert_eq!((kernel, failure.code()), ("reader", "kernel_mismatch"), "{dtype}");
        setup.multiply(&product, 3).unwrap();
    }
}

#[test]
fn who_is_compared_takes_of_the_budget_only_what_it_does_not_hold_yet() {
    let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
    setup.left = Arc::new(Bytes(AtomicUsize::new(37 * 64 * 4)));
    let budget: Arc<dyn KernelBudget> = setup.left.clone();
    setup.activate("plugin", plugin(None)).unwrap();
    let product = setup.product().unwrap();
    assert_eq!((product.kernel(), setup.left.0.load(Relaxed)), ("plugin", 0));
    let snapshot = setup.host.snapshot();
    let chain = &snapshot.slot_of(&OpKey::matmul(DType::Q8_0)).unwrap().choice.chain;
    let held = chain.iter().find(|kernel| kernel.id() == "plugin").unwrap().hash();
    let provider = &plugin(None);
    let mut times = |two: [(&str, bool); 2]| {
        let Setup { worker, pool, bytes, dtype, shape, settings, made, .. } = &mut setup;
        let team = Team { pool, isa: Isa::detect() };
        let weights = Weights::new(*dtype, shape[0], shape[1], bytes).unwrap();
        let how = Preparation { team, budget: &budget, settings };
        let of = |(hash, is_native)| ComparedProvider { provider, hash, is_native };
        worker.compare_with_matrix(two.map(of), &weights, made, &how).len()
    };
    let (native, held, other) = (("native", true), (held, false), ("other", false));
    assert_eq!((times([native, native]), times([native, held])), (2, 2));
    assert_eq!((times([native, other]), times([other, held])), (0, 0));
}

/// A model may be shared by engines with different numbers of threads.
#[test]
fn what_is_shared_out_to_threads_is_made_for_each_number_of_them() {
    let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
    let sandboxed = Provider::Matmul(DType::Q8_0, Arc::new(Sandboxed::new()));
    setup.activate("sandboxed", sandboxed).unwrap();
    let three = setup.product().unwrap();
    for threads in [2, 4] {
        setup.pool = ThreadPool::new(threads);
        let other = setup.product().unwrap();
        assert!(other.made());
        setup.multiply(&other, 2).unwrap();
    }
    setup.pool = ThreadPool::new(3);
    assert!(!setup.product().unwrap().made(), "it is there already");
    setup.multiply(&three, 2).unwrap();
}

#[test]
fn one_for_which_there_is_no_memory_is_passed_over_and_who_activates_it_is_told() {
    let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
    setup.left = Arc::new(Bytes(AtomicUsize::new(100)));
    setup.activate("plugin", plugin(None)).unwrap();
    let product = setup.product().unwrap();
    let (kernel, failure) = product.refused().unwrap();
    assert_eq!((kernel, failure.code()), ("plugin", "weight_memory_full"));
    assert!(product.kernel().starts_with("native:"));
    setup.multiply(&product, 1).unwrap();
    let report = stats(&setup.host, "plugin");
    assert!(!report.quarantined && report.failures["weight_memory_full"] == 1);

    struct Never;
    impl Preparer for Never {
        fn prepare(&self, _: &Arc<RegistrySnapshot>) -> Result<(), HostError> {
            let (kernel, failure) = ("plugin".to_owned(), Failure::WeightMemory { needed: 1 });
            Err(HostError::NotPrepared { kernel, failure })
        }

        fn let_go(&self) {}

        fn compare(&self, _: [ComparedProvider<'_>; 2]) -> Vec<[Duration; 2]> {
            Vec::new()
        }
    }
    let setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
    let never: Arc<dyn Preparer> = Arc::new(Never);
    setup.host.prepare_with(&never);
    let refused = setup.activate("plugin", plugin(None)).unwrap_err();
    assert_eq!((refused.code(), setup.host.generation()), ("not_prepared", 1));
    assert_eq!(setup.host.generations().len(), 1, "nothing is left of the attempt");
    drop(never);
    let staged = setup.host.staged();
    setup.host.activate(staged[0].id).unwrap();
}

/// Has the host asked and told things on another thread while it makes ready.
struct Asking {
    host: Host,
    bar: bool,
}

impl Preparer for Asking {
    fn prepare(&self, _: &Arc<RegistrySnapshot>) -> Result<(), HostError> {
        let (answer, answered) = std::sync::mpsc::channel();
        let (host, bar) = (self.host.clone(), self.bar);
        std::thread::spawn(move || {
            let staged = host.staged();
            if bar {
                host.bar(&staged[0].pack.digest, "found meanwhile");
            }
            let seen = (host.generations().len(), host.previous_generation(), staged.len());
            answer.send((seen, host.barred().len()))
        });
        let answer = answered.recv_timeout(Duration::from_secs(20)).expect("an answer meanwhile");
        assert_eq!(answer, ((1, None, 1), usize::from(self.bar)));
        Ok(())
    }

    fn let_go(&self) {}

    fn compare(&self, _: [ComparedProvider<'_>; 2]) -> Vec<[Duration; 2]> {
        Vec::new()
    }
}

#[test]
fn whoever_asks_about_generations_waits_for_nobody_who_prepares() {
    for bar in [false, true] {
        let setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
        let asking: Arc<dyn Preparer> = Arc::new(Asking { host: setup.host.clone(), bar });
        setup.host.prepare_with(&asking);
        let activated = setup.activate("plugin", plugin(None));
        let listed = setup.host.generations().len();
        match activated {
            Err(refused) => assert_eq!((bar, refused.code(), listed), (true, "pack_barred", 1)),
            Ok(_) => assert_eq!((bar, listed, setup.host.generation()), (false, 2, 2)),
        }
    }
}

#[test]
fn one_element_wrong_in_a_thousand_is_found_within_the_stated_number_of_products() {
    // All 32 elements of each product are looked at in one of 4, which leaves
    // `(1 - (1 - 0.999^32) / 4)^n`: 1e-9 at this many.
    let config = HostConfig { cross_check_every: 4, quarantine_after: 1, ..HostConfig::default() };
    let mut setup = Setup::new(config, DType::Q8_0, [1000, 32]);
    setup.activate("plugin", plugin(Some(1000))).unwrap();
    let product = setup.product().unwrap();
    setup.multiply_often(&product, 2700);
    let report = stats(&setup.host, "plugin");
    assert!(report.quarantined && report.failures["kernel_mismatch"] == 1, "{report:?}");
    let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0));
    assert!(explained.selected.unwrap().starts_with("native:"));
}

/// Says of the next calls that it reads numbers, and of all after them that it reads pairs.
struct Denying {
    honest: AtomicUsize,
}

impl MatmulProvider for Denying {
    fn prepared_bytes(&self, weights: &Weights<'_>, isa: Isa) -> Option<usize> {
        Plugin { wrong: None }.prepared_bytes(weights, isa)
    }

    fn prepare(&self, w: &Weights<'_>, team: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        Plugin { wrong: Some(1) }.prepare(w, team)
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        let left = self.honest.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left.is_ok() { ActForm::Floats } else { ActForm::Pairs }
    }
}

#[test]
fn one_that_says_when_it_is_checked_that_it_reads_what_there_is_not_is_found() {
    let config = HostConfig { cross_check_every: 1, quarantine_after: 1, ..HostConfig::default() };
    let mut setup = Setup::new(config, DType::Q8_0, [37, 64]);
    // When the matrix is taken up, and when the activations are.
    let denying = Denying { honest: AtomicUsize::new(2) };
    setup.activate("denying", Provider::Matmul(DType::Q8_0, Arc::new(denying))).unwrap();
    let product = setup.product().unwrap();
    setup.multiply(&product, 1).unwrap();
    let report = stats(&setup.host, "denying");
    assert!(report.quarantined && report.calls == 0, "{report:?}");
}

/// The host's own provider, which is wrong.
fn wrong_native(wrong: usize) -> Native {
    let id = "matmul_wrong".to_owned();
    Native { id, provider: plugin(Some(wrong)), about: "wrong on purpose".to_owned() }
}

#[test]
fn one_of_the_hosts_own_that_is_wrong_is_found_too_and_the_next_answers() {
    // As many as with any other.
    let config =
        HostConfig { cross_check_own_every: 4, quarantine_after: 1, ..HostConfig::default() };
    let natives = [wrong_native(1000)].into_iter().chain(natives(&config)).collect();
    let host = Host::with_providers(config, natives).unwrap();
    let mut setup = Setup::of(host, DType::Q8_0, [1000, 32]);
    let product = setup.product().unwrap();
    assert_eq!(product.kernel(), "native:matmul_wrong");
    setup.multiply_often(&product, 2700);
    let report = stats(&setup.host, "native:matmul_wrong");
    assert!(report.quarantined && report.failures["kernel_mismatch"] == 1, "{report:?}");
    setup.multiply(&product, 1).unwrap();
    let product = setup.product().unwrap();
    let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0));
    assert_eq!(explained.selected.as_deref(), Some(product.kernel()));
    assert_ne!(product.kernel(), "native:matmul_wrong");
    setup.multiply(&product, 1).unwrap();
}

#[test]
fn the_last_of_a_chain_is_reported_and_stays() {
    let last = "native:matmul_wrong";
    let pins = [("matmul".to_owned(), last.to_owned())];
    let config = HostConfig {
        cross_check_own_every: 1,
        quarantine_after: 1,
        policy: Policy::Pinned(pins.into()),
        ..HostConfig::default()
    };
    let host = Host::with_providers(config, vec![wrong_native(1)]).unwrap();
    let mut setup = Setup::of(host, DType::Q8_0, [37, 64]);
    let product = setup.product().unwrap();
    setup.multiply_often(&product, 3);
    let report = stats(&setup.host, last);
    assert!(!report.quarantined && report.failures["kernel_mismatch"] == 3, "{report:?}");
    let (incidents, _) = setup.host.take_incidents();
    assert_eq!(incidents.len(), 3);

    // With another behind it, it is taken out of service; where that goes, it is asked all the same.
    let behind = Provider::Matmul(DType::Q8_0, Arc::new(Hasty { bytes: 0 }));
    setup.activate("behind", behind).unwrap();
    let selected = |setup: &Setup| setup.host.explain(&OpKey::matmul(DType::Q8_0)).selected;
    assert_eq!(selected(&setup).as_deref(), Some(last));
    let product = setup.product().unwrap();
    setup.multiply_often(&product, 2);
    assert!(stats(&setup.host, last).quarantined);
    assert_eq!(
        (selected(&setup).as_deref(), stats(&setup.host, "behind").calls),
        (Some("behind"), 2)
    );
    setup.multiply(&product, 1).unwrap();
    setup.host.roll_back(1).unwrap();
    assert_eq!(selected(&setup).as_deref(), Some(last));
    let product = setup.product().unwrap();
    setup.multiply_often(&product, 1);
}

#[test]
fn one_that_is_wrong_when_it_takes_a_matrix_up_never_multiplies() {
    /// Wrong in one row; says that it holds so many bytes.
    struct OneRow(usize);
    impl MatmulProvider for OneRow {
        fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
            Some(self.0)
        }
        fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
            Ok(Box::new(OneRow(0)))
        }
        fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForm {
            x.form(isa, rows, DType::Q8_0)
        }
    }
    impl PreparedMatmul for OneRow {
        fn run(
            &self,
            weights: &Weights<'_>,
            x: &Activations,
            y: MatMut<'_>,
            team: Team<'_>,
        ) -> Result<(), String> {
            let MatMut { data, stride } = y;
            let y = MatMut { data: &mut *data, stride };
            matmul(team.pool, team.isa, weights, x, y).map_err(|error| error.to_string())?;
            data[23] += 1.0;
            Ok(())
        }
    }
    let one_row = |bytes| Provider::Matmul(DType::Q8_0, Arc::new(OneRow(bytes)));
    for bytes in [0, 64] {
        let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [37, 64]);
        setup.activate("one_row", one_row(bytes)).unwrap();
        let product = setup.product().unwrap();
        assert_eq!(product.refused().unwrap().1.code(), "kernel_mismatch");
        assert!(product.kernel().starts_with("native:"));
    }

    // The host's own likewise.
    let config = HostConfig::default();
    let id = "matmul_one_row".to_owned();
    let own = Native { id, provider: one_row(64), about: "wrong on purpose".to_owned() };
    let natives = [own].into_iter().chain(natives(&config)).collect();
    let mut setup =
        Setup::of(Host::with_providers(config, natives).unwrap(), DType::Q8_0, [37, 64]);
    let product = setup.product().unwrap();
    assert_ne!(product.kernel(), "native:matmul_one_row");
    assert_eq!(stats(&setup.host, "native:matmul_one_row").failures["kernel_mismatch"], 1);
}

#[test]
fn the_fastest_is_found_when_a_matrix_is_loaded() {
    let config = HostConfig { policy: Policy::Fastest, ..HostConfig::default() };
    let mut setup = Setup::new(config, DType::Q8_0, [512, 512]);
    setup.left = Arc::new(Bytes(AtomicUsize::new(4 << 20)));
    setup.activate("plugin", plugin(None)).unwrap();
    let product = setup.product().unwrap();
    assert!(product.kernel().starts_with("native:"), "a plain loop is slower");
    let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0)).to_string();
    let one = "products of 1 rows with up to 2^19 weights";
    assert!(explained.contains(&format!("{one}: native:matmul_q8_0")), "{explained}");
    assert!(explained.contains("products of 32 rows with up to 2^19 weights: "), "{explained}");
    let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0));
    assert_eq!(explained.selected.as_deref(), Some(product.kernel()));
    let selected = explained.candidates.iter().find(|one| one.kernel == product.kernel()).unwrap();
    let why = &selected.reasons[0];
    assert!(why.starts_with("the fastest in a race: ") && why.contains(one), "{why}");
}

/// Right and slow with one row; with many it leaves zeros, faster than whoever multiplies.
struct Hasty {
    /// What it says that it holds.
    bytes: usize,
}

impl MatmulProvider for Hasty {
    fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(self.bytes)
    }

    fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        Ok(Box::new(Hasty { bytes: self.bytes }))
    }

    fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForm {
        x.form(isa, rows, DType::Q8_0)
    }
}

impl PreparedMatmul for Hasty {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String> {
        if x.rows() > 1 {
            y.data.fill(0.0);
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        matmul(team.pool, team.isa, weights, x, y).map_err(|error| error.to_string())
    }
}

#[test]
fn matrices_of_each_size_race_and_who_wins_with_many_rows_is_asked_for_these() {
    let config =
        HostConfig { policy: Policy::Fastest, cross_check_every: 0, ..HostConfig::default() };
    let mut setup = Setup::new(config, DType::Q8_0, [64, 64]);
    for (name, bytes) in [("in_place", 0), ("holding", 8)] {
        let provider = Provider::Matmul(DType::Q8_0, Arc::new(Hasty { bytes }));
        setup.activate(name, provider).unwrap();
    }
    let races = |setup: &Setup, rows: usize, weights: usize| {
        let what = format!("products of {rows} rows with up to 2^{weights} weights: ");
        let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0));
        explained.notes.into_iter().find_map(|note| Some(note.strip_prefix(&what)?.to_owned()))
    };
    let product = setup.product().unwrap();
    let native = product.kernel().to_owned();
    assert!(native.starts_with("native:"), "{native}");
    let (one, many) = (races(&setup, 1, 13).unwrap(), races(&setup, 32, 13).unwrap());
    assert!(one.starts_with(&native) && one.contains("holding "), "{one}");
    assert!(many.starts_with("in_place ") && !many.contains("holding "), "{many}");
    let explained = setup.host.explain(&OpKey::matmul(DType::Q8_0));
    assert_eq!(explained.selected.as_deref(), Some(&*native));

    setup.multiply(&product, 1).unwrap();
    let calls = |setup: &Setup, kernel: &str| stats(&setup.host, kernel).calls;
    assert_eq!((calls(&setup, &native), calls(&setup, "in_place")), (1, 0));
    let mut x = Activations::new();
    let (team, forms) = (setup.team(), product.reads(&x, 32, Isa::detect()));
    x.prepare(&setup.pool, team.isa, &noise(32 * 64), 32, 64, forms).unwrap();
    let (mut worker, snapshot) = (setup.host.team_worker(), setup.host.snapshot());
    let y = MatMut { data: &mut [1.0; 32 * 64], stride: 64 };
    let of_matrix = MatrixProduct { providers: &product, weights: setup.weights(), y };
    worker.matmul(&snapshot, &mut [of_matrix], &x, team).unwrap();
    drop(worker);
    assert_eq!((calls(&setup, &native), calls(&setup, "in_place")), (1, 1));

    // A matrix of another size has a race of its own.
    assert_eq!(races(&setup, 1, 15), None);
    (setup.shape, setup.made) = ([128, 128], PreparedWeights::default());
    setup.bytes = vec![0; DType::Q8_0.bytes_for(128 * 128).unwrap()];
    setup.product().unwrap();
    assert!(races(&setup, 1, 15).is_some());
}

#[test]
fn the_fastest_gathers_embeddings_and_attends() {
    /// Right where it is asked, and slow.
    struct Slow;
    impl EmbedProvider for Slow {
        fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
            Some(0)
        }

        fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedEmbed>, String> {
            Ok(Box::new(Slow))
        }
    }
    impl PreparedEmbed for Slow {
        fn run(
            &self,
            table: &Weights<'_>,
            tokens: &[u32],
            y: &mut [f32],
            _: Team<'_>,
        ) -> Result<(), String> {
            std::thread::sleep(std::time::Duration::from_millis(2));
            for (token, y) in tokens.iter().zip(y.chunks_mut(table.cols())) {
                let row = table.row(*token as usize);
                dequantize_row(table.dtype(), row, y).map_err(|e| e.to_string())?;
            }
            Ok(())
        }
    }
    impl AttentionProvider for Slow {
        fn open(&self) -> Box<dyn AttentionSession> {
            Box::new(Slow)
        }
    }
    impl AttentionSession for Slow {
        fn run(
            &mut self,
            _: &AttnShape,
            _: &mut [AttnSequence<'_>],
            _: Team<'_>,
        ) -> Result<(), String> {
            std::thread::sleep(std::time::Duration::from_millis(2));
            Ok(())
        }
    }
    let config = HostConfig { policy: Policy::Fastest, ..HostConfig::default() };
    let mut setup = Setup::new(config, DType::Q8_0, [16, 64]);
    setup.activate("embed", Provider::Embed(DType::Q8_0, Arc::new(Slow))).unwrap();
    setup.activate("attention", Provider::Attention(Arc::new(Slow))).unwrap();
    let (embed, attention) = (OpKey::embed(DType::Q8_0), OpKey::attention());
    let snapshot = setup.host.snapshot();
    let table = setup.table().unwrap();
    assert_eq!(setup.gather(&table, 3), setup.row(3));
    let calls = |kernel| stats(&setup.host, kernel).calls;
    assert_eq!([calls("embed"), calls("native:embed_q8_0")], [0, 1]);
    let mut racer = setup.host.team_worker();
    let shape = AttnShape {
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        scale: 0.2,
        window: None,
        deterministic: false,
    };
    for head_dim in [32, 64] {
        racer.race_attention(&snapshot, &AttnShape { head_dim, ..shape }, setup.team());
    }
    for (key, won) in [
        (&embed, "embeddings of 1 tokens from up to 2^11 weights: native:embed_q8_0"),
        (&attention, "attention of 32 queries with heads of up to 2^6 numbers: native:attention"),
        (&attention, "attention of 32 queries with heads of up to 2^7 numbers: native:attention"),
    ] {
        let explained = setup.host.explain(key).to_string();
        assert!(explained.contains(won), "{explained}");
    }
}

/// The host's own code, with one element in a thousand off once it is in service.
struct Thousandth<P> {
    own: P,
    elements: Arc<AtomicUsize>,
}

/// What attention is asked for.
const SHAPE: AttnShape = AttnShape {
    heads: 2,
    kv_heads: 1,
    head_dim: 64,
    scale: 0.2,
    window: None,
    deterministic: false,
};

/// The rows of a table that is taken up are right, all of them.
const TAKEN_UP: usize = 16 * 64;

impl<P> Thousandth<P> {
    fn of(own: P) -> Self {
        Thousandth { own, elements: Arc::default() }
    }

    fn spoil(&self, y: &mut [f32]) {
        let first = self.elements.fetch_add(y.len(), Relaxed);
        let off = (first..).zip(y);
        let off = off.filter(|(element, _)| *element >= TAKEN_UP && element % 1000 == 999);
        off.for_each(|(_, y)| *y += 0.25);
    }
}

impl EmbedProvider for Thousandth<Arc<dyn EmbedProvider>> {
    fn prepared_bytes(&self, table: &Weights<'_>, isa: Isa) -> Option<usize> {
        self.own.prepared_bytes(table, isa)
    }

    fn prepare(
        &self,
        table: &Weights<'_>,
        team: Team<'_>,
    ) -> Result<Box<dyn PreparedEmbed>, String> {
        let own = self.own.prepare(table, team)?;
        Ok(Box::new(Thousandth { own, elements: self.elements.clone() }))
    }
}

impl PreparedEmbed for Thousandth<Box<dyn PreparedEmbed>> {
    fn run(
        &self,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        team: Team<'_>,
    ) -> Result<(), String> {
        self.own.run(table, tokens, y, team)?;
        self.spoil(y);
        Ok(())
    }
}

impl AttentionProvider for Thousandth<Arc<dyn AttentionProvider>> {
    fn open(&self) -> Box<dyn AttentionSession> {
        Box::new(Thousandth { own: self.own.open(), elements: self.elements.clone() })
    }
}

impl AttentionSession for Thousandth<Box<dyn AttentionSession>> {
    fn run(
        &mut self,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        team: Team<'_>,
    ) -> Result<(), String> {
        self.own.run(shape, sequences, team)?;
        sequences.iter_mut().for_each(|sequence| self.spoil(sequence.y));
        Ok(())
    }
}

#[test]
fn one_element_wrong_in_a_thousand_is_found_in_embeddings_and_attention() {
    // The 64 elements of a row, and of a head of a query, are looked at in one of 4 calls, which leaves
    // `(1 - (1 - 0.999^64) / 4)^n`: 1e-9 at this many.
    const CALLS: usize = 1400;
    let config = HostConfig { cross_check_every: 4, quarantine_after: 1, ..HostConfig::default() };
    let of = |provider| match provider {
        Provider::Embed(DType::Q8_0, own) => {
            let wrong = Arc::new(Thousandth::of(own));
            Some(("embed", Provider::Embed(DType::Q8_0, wrong)))
        }
        Provider::Attention(own) => {
            Some(("attention", Provider::Attention(Arc::new(Thousandth::of(own)))))
        }
        _ => None,
    };
    let wrong: Vec<_> = natives(&config).into_iter().filter_map(|own| of(own.provider)).collect();
    let mut setup = Setup::new(config, DType::Q8_0, [16, 64]);
    for (name, provider) in wrong {
        setup.activate(name, provider).unwrap();
    }
    let snapshot = setup.host.snapshot();
    let attention = snapshot.slot(&OpKey::attention()).unwrap();

    let mut y = [0.0; 128];
    let table = setup.table().unwrap();
    let (mut worker, weights) = (setup.host.team_worker(), setup.weights());
    for _ in 0..CALLS {
        worker.embed(&snapshot, &table, &weights, &[3, 9], &mut y, setup.team()).unwrap();
    }
    assert_eq!(y[64..], setup.row(9), "the host's own answers");
    let report = stats(&setup.host, "embed");
    assert!(report.quarantined && report.failures["kernel_mismatch"] == 1, "{report:?}");

    let (q, k, v) = (noise(128), noise(5 * 64), noise(5 * 64));
    let (k, v) = (bytemuck::cast_slice(&k), bytemuck::cast_slice(&v));
    let kv = [KvSegment::tokens(DType::F32, 5, k, v)];
    let mut y = [0.0; 128];
    for _ in 0..CALLS {
        let mut sequences = [AttnSequence { q: &q, q_pos: 4, kv: &kv, y: &mut y }];
        worker.attention(&snapshot, attention, &SHAPE, &mut sequences, setup.team()).unwrap();
    }
    let report = stats(&setup.host, "attention");
    assert!(report.quarantined && report.failures["kernel_mismatch"] == 1, "{report:?}");
    assert!(stats(&setup.host, "native:attention").calls > 0);
}

/// Fails: where it is told to, when it takes a matrix up, or else in each call for a result. What it was handed it
/// has changed by then as far as it could.
struct Failing {
    prepares: bool,
}

struct FailingMatrix {
    plugin: Box<dyn PreparedMatmul>,
    runs: AtomicUsize,
}

const FAILURE: &str = "out of order";

impl MatmulProvider for Failing {
    fn prepared_bytes(&self, weights: &Weights<'_>, isa: Isa) -> Option<usize> {
        Plugin { wrong: None }.prepared_bytes(weights, isa)
    }

    fn prepare(&self, w: &Weights<'_>, team: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        if !self.prepares {
            return Err(FAILURE.to_owned());
        }
        let plugin = Plugin { wrong: None }.prepare(w, team)?;
        Ok(Box::new(FailingMatrix { plugin, runs: AtomicUsize::new(0) }))
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        ActForm::Floats
    }
}

impl PreparedMatmul for FailingMatrix {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String> {
        // The rows of a matrix that was taken up are right.
        if self.runs.fetch_add(1, Relaxed) == 0 {
            return self.plugin.run(weights, x, y, team);
        }
        y.data.fill(f32::NAN);
        Err(FAILURE.to_owned())
    }
}

impl EmbedProvider for Failing {
    fn prepared_bytes(&self, table: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(table.size())
    }

    fn prepare(&self, table: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedEmbed>, String> {
        match self.prepares {
            true => Ok(Box::new(CopiedTable::of(table, None))),
            false => Err(FAILURE.to_owned()),
        }
    }
}

/// Gathers from a copy of its own. Fails once all rows have been read, and has one wrong where that is asked for.
struct CopiedTable {
    rows: Vec<u8>,
    gathered: AtomicUsize,
    wrong: Option<usize>,
}

impl CopiedTable {
    fn of(table: &Weights<'_>, wrong: Option<usize>) -> Self {
        let rows = (0..table.rows()).flat_map(|row| table.row(row)).copied().collect();
        CopiedTable { rows, gathered: AtomicUsize::new(0), wrong }
    }
}

impl PreparedEmbed for CopiedTable {
    fn run(
        &self,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        _: Team<'_>,
    ) -> Result<(), String> {
        if self.gathered.fetch_add(tokens.len(), Relaxed) >= table.rows() {
            y.fill(f32::NAN);
            return Err(FAILURE.to_owned());
        }
        let size = table.size() / table.rows();
        for (token, y) in tokens.iter().zip(y.chunks_exact_mut(table.cols())) {
            let row = &self.rows[*token as usize * size..][..size];
            dequantize_row(table.dtype(), row, y).map_err(|e| e.to_string())?;
            if self.wrong == Some(*token as usize) {
                y[0] += 1.0;
            }
        }
        Ok(())
    }
}

/// Has a row of its copy wrong.
struct WrongRow(usize);

impl EmbedProvider for WrongRow {
    fn prepared_bytes(&self, table: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(table.size())
    }

    fn prepare(&self, table: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedEmbed>, String> {
        Ok(Box::new(CopiedTable::of(table, Some(self.0))))
    }
}

impl AttentionProvider for Failing {
    fn open(&self) -> Box<dyn AttentionSession> {
        Box::new(Failing { prepares: true })
    }
}

impl AttentionSession for Failing {
    fn run(
        &mut self,
        _: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        _: Team<'_>,
    ) -> Result<(), String> {
        for sequence in sequences {
            std::mem::take(&mut sequence.y).fill(f32::NAN);
            (sequence.q_pos, sequence.kv) = (0, &[]);
        }
        Err(FAILURE.to_owned())
    }
}

/// Attends wrongly, and takes away what would show it.
struct Misleading(Arc<dyn AttentionProvider>);

struct MisleadingSession(Box<dyn AttentionSession>);

impl AttentionProvider for Misleading {
    fn open(&self) -> Box<dyn AttentionSession> {
        Box::new(MisleadingSession(self.0.open()))
    }
}

impl AttentionSession for MisleadingSession {
    fn run(
        &mut self,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        team: Team<'_>,
    ) -> Result<(), String> {
        // Right for a query that sees the first position alone.
        sequences.iter_mut().for_each(|sequence| sequence.q_pos = 0);
        self.0.run(shape, sequences, team)?;
        sequences.iter_mut().for_each(|sequence| sequence.y = &mut []);
        Ok(())
    }
}

/// Attends, and holds what comes of it against its definition.
fn attends(worker: &mut TeamWorker, snapshot: &RegistrySnapshot, team: Team<'_>) {
    let slot = snapshot.slot(&OpKey::attention()).unwrap();
    let (q, k, v) = (noise(128), noise(5 * 64), noise(5 * 64));
    let (k, v) = (bytemuck::cast_slice(&k), bytemuck::cast_slice(&v));
    let kv = [KvSegment::tokens(DType::F32, 5, k, v)];
    let mut y = [f32::NAN; 128];
    let mut sequences = [AttnSequence { q: &q, q_pos: 4, kv: &kv, y: &mut y }];
    worker.attention(snapshot, slot, &SHAPE, &mut sequences, team).unwrap();
    let mut buffers = TeamBuffers::default();
    for head in [0, 1] {
        check_attention(&SHAPE, &sequences[0], [0, head], &mut buffers).unwrap();
    }
}

#[test]
fn one_that_fails_is_passed_over_whatever_it_has_done_with_what_it_was_handed() {
    let config = HostConfig { quarantine_after: 1, ..HostConfig::default() };
    let failed = |host: &Host, id: &str| {
        let report = stats(host, id);
        assert!(report.quarantined && report.failures["provider_failed"] == 1, "{report:?}");
        assert_eq!(report.calls, 0);
    };
    let matmul = |prepares| Provider::Matmul(DType::Q8_0, Arc::new(Failing { prepares }));
    let mut setup = Setup::new(config.clone(), DType::Q8_0, [16, 64]);
    setup.activate("unready", matmul(false)).unwrap();
    let product = setup.product().unwrap();
    let (kernel, failure) = product.refused().unwrap();
    assert_eq!((kernel, failure.code()), ("unready", "provider_failed"));
    assert!(failure.to_string().contains(FAILURE), "{failure}");
    setup.multiply(&product, 3).unwrap();
    failed(&setup.host, "unready");

    let mut setup = Setup::new(config.clone(), DType::Q8_0, [16, 64]);
    setup.activate("matmul", matmul(true)).unwrap();
    let failing = || Arc::new(Failing { prepares: true });
    setup.activate("embed", Provider::Embed(DType::Q8_0, failing())).unwrap();
    setup.activate("attention", Provider::Attention(failing())).unwrap();
    let product = setup.product().unwrap();
    assert_eq!(product.kernel(), "matmul");
    setup.multiply(&product, 3).unwrap();
    failed(&setup.host, "matmul");

    let table = setup.table().unwrap();
    assert_eq!(table.kernel(), "embed");
    assert_eq!(setup.gather(&table, 9), setup.row(9));
    failed(&setup.host, "embed");
    let snapshot = setup.host.snapshot();
    let mut worker = setup.host.team_worker();
    attends(&mut worker, &snapshot, setup.team());
    failed(&setup.host, "attention");

    // One that says that it has answered is found out, and the next one's is the answer.
    let config = HostConfig { cross_check_every: 1, ..config };
    let setup = Setup::new(config.clone(), DType::Q8_0, [16, 64]);
    let own = natives(&config).into_iter().find_map(|own| match own.provider {
        Provider::Attention(own) => Some(own),
        _ => None,
    });
    let misleading = Arc::new(Misleading(own.unwrap()));
    setup.activate("attention", Provider::Attention(misleading)).unwrap();
    let snapshot = setup.host.snapshot();
    let mut worker = setup.host.team_worker();
    attends(&mut worker, &snapshot, setup.team());
    let report = stats(&setup.host, "attention");
    assert!(report.quarantined && report.failures["kernel_mismatch"] == 1, "{report:?}");
}

#[test]
fn a_table_that_a_provider_copies_is_counted_and_each_row_of_it_checked() {
    let embed = |provider| Provider::Embed(DType::Q8_0, provider);
    let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [300, 64]);
    setup.activate("copy", embed(Arc::new(Failing { prepares: true }))).unwrap();
    let (all, size) = (setup.left.0.load(Relaxed), setup.weights().size());
    let table = setup.table().unwrap();
    assert_eq!((table.kernel(), table.refused().is_none()), ("copy", true));
    assert_eq!(setup.left.0.load(Relaxed), all - size);
    assert_eq!(setup.made_table.held_bytes(), size);
    drop(table);
    assert_eq!(setup.left.0.load(Relaxed), all);

    // Where there is no room, and where a row is wrong, the host's own gathers.
    setup.left.0.store(size - 1, Relaxed);
    let table = setup.table().unwrap();
    let (kernel, failure) = table.refused().unwrap();
    assert_eq!((kernel, failure.code()), ("copy", "weight_memory_full"));
    assert_eq!(setup.gather(&table, 299), setup.row(299));
    for wrong in [0, 299] {
        let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [300, 64]);
        setup.activate("copy", embed(Arc::new(WrongRow(wrong)))).unwrap();
        let table = setup.table().unwrap();
        let (kernel, failure) = table.refused().unwrap();
        assert_eq!((kernel, failure.code()), ("copy", "kernel_mismatch"));
        assert_eq!(setup.gather(&table, wrong as u32), setup.row(wrong as u32));
        assert_eq!(setup.left.0.load(Relaxed), all);
    }
}

#[test]
fn no_pack_brings_a_team_operation_and_no_worker_calls_one() {
    let module = ruvllm_tests::wat::assemble(ROWS_PRODUCT);
    let entry = custom_entry("matmul_f32", "matmul", "run");
    let pack = PackBuilder::new().entry(entry, module).build();
    assert_eq!(refusal(&pack), "team_operation");

    let host = Host::new(HostConfig::default()).unwrap();
    let mut worker = host.worker().unwrap();
    for name in ["matmul", "native:attention"] {
        let error = worker.call_generic(&host.snapshot(), name, &[], &[]).unwrap_err();
        assert_eq!(error.code(), "unknown_kernel", "{error}");
    }
}

#[cfg(feature = "supervisor")]
#[test]
fn a_supervisor_watches_a_provider_and_takes_one_back_that_is_wrong_or_fails() {
    use super::supervising::{Place, active, digest};
    let place = Place::new();
    let trusted = place.pack(1, &Module::default());
    let supervisor = place.open(&trusted);
    let host = supervisor.host();
    super::supervising::activate(&supervisor, &trusted).unwrap();
    place.end_window(&supervisor);
    let pack = |version: u64, provider| {
        ProviderPack::new("plugin", semver::Version::new(version, 0, 0)).with("plugin", provider)
    };
    let failing = || Arc::new(Failing { prepares: true });
    let mut setup = Setup::new(HostConfig::default(), DType::Q8_0, [10, 32]);
    (setup.host, setup.worker) = (host.clone(), host.team_worker());
    for (version, provider) in [
        (1, plugin(None)),
        (2, plugin(Some(1))),
        (3, Provider::Matmul(DType::Q8_0, failing())),
        (4, Provider::Embed(DType::Q8_0, failing())),
        (5, Provider::Attention(failing())),
    ] {
        let op = provider.key();
        let staged = host.stage_providers(&pack(version, provider)).unwrap();
        supervisor.start_canary(staged.id, 0.5, "me").unwrap();
        supervisor.promote_canary("me").unwrap();
        assert_eq!(host.explain(&op).selected.as_deref(), Some("plugin"));
        let product = setup.product().unwrap();
        setup.multiply(&product, 1).unwrap();
        let table = setup.table().unwrap();
        assert_eq!(setup.gather(&table, 3), setup.row(3));
        let (snapshot, mut worker) = (host.snapshot(), host.team_worker());
        attends(&mut worker, &snapshot, setup.team());
        place.end_window(&supervisor);
        let _ = (setup.product(), setup.table());
    }
    assert_eq!(active(&supervisor), ["1.0.0", "1.0.0"], "{:?}", supervisor.health());
    let taken_back = supervisor.counters().taken_back;
    assert_eq!((taken_back["wrong_numbers"], taken_back["traps"]), (1, 3));
    // A restart has the packs back whose bytes are kept, and says what it lacks.
    drop((setup, supervisor));
    let again = place.open(&trusted);
    assert_eq!(active(&again), ["1.0.0"]);
    assert_eq!(again.host().snapshot().pack_ids()[0].digest, digest(&trusted));
}
