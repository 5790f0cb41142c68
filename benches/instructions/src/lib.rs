//! The operations that the bench counts: whatever a call needs is made beforehand, so that the call
//! alone is counted.

use half::f16;
use ruvllm_abi::DType;
#[cfg(feature = "host")]
use ruvllm_host::{Host, HostConfig, OpCall, OpKey, Operand, Policy, Resident};
use ruvllm_native::attention::{AttnScratch, AttnShape, KvSegment, attention};
use ruvllm_native::gemm::{Activations, MatMut, PackedWeights, Weights, matmul};
use ruvllm_native::ops::{self, LoraShape, RopeShape};
use ruvllm_native::{Isa, ThreadPool};
#[cfg(feature = "host")]
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::hint::black_box;
#[cfg(feature = "host")]
use std::path::Path;
use std::rc::Rc;

/// A call that is ready to be made.
pub struct Ready(Box<dyn FnMut()>);

impl Ready {
    /// The first call, which grows buffers and looks up features, is made here.
    fn new(mut call: impl FnMut() + 'static) -> Ready {
        call();
        Ready(Box::new(call))
    }

    /// Makes the call.
    pub fn call(&mut self) {
        (self.0)();
    }
}

/// Inputs of a matrix, and of a row of activations.
const COLS: usize = 2048;

/// Outputs of a matrix: a few panels of every layout.
const ROWS: usize = 64;

/// A matrix of weights, and its panels where products read these.
pub struct Matrix {
    isa: Isa,
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
    packed: Option<PackedWeights>,
}

impl Matrix {
    /// A matrix of `rows` outputs and `cols` inputs, which are whole blocks of every type, for products with `isa`.
    pub fn new(isa: Isa, dtype: DType, rows: usize, cols: usize) -> Rc<Matrix> {
        let bytes = weights(dtype, rows * cols);
        let w = Weights::new(dtype, rows, cols, &bytes).expect("whole rows");
        let packed = PackedWeights::pays(dtype, isa)
            .then(|| PackedWeights::new(&ThreadPool::new(1), isa, &w).expect("there is memory"));
        Rc::new(Matrix { isa, dtype, rows, cols, bytes, packed })
    }

    /// The product with `m` rows of activations, which are taken in beforehand.
    pub fn product(self: &Rc<Matrix>, m: usize) -> Ready {
        let isa = self.isa;
        let (matrix, pool, mut act) = (Rc::clone(self), ThreadPool::new(1), Activations::new());
        let (x, forms) = (noise(m * self.cols), act.forms(isa, m, &[self.dtype]));
        act.prepare(&pool, isa, &x, m, self.cols, forms).expect("sizes agree");
        let mut y = vec![0.0; m * matrix.rows];
        Ready::new(move || {
            let Matrix { dtype, rows, cols, bytes, packed, .. } = &*matrix;
            let w = Weights::new(*dtype, *rows, *cols, bytes).expect("whole rows");
            let w = packed.as_ref().map_or(w, |packed| w.with_packed(packed).expect("of its size"));
            let y = MatMut { data: black_box(&mut y), stride: *rows };
            matmul(&pool, isa, &w, &act, y).expect("sizes agree");
        })
    }
}

/// The product of `m` rows of activations, taken in beforehand, with `[64, 2048]` weights.
pub fn product(isa: Isa, dtype: DType, m: usize) -> Ready {
    Matrix::new(isa, dtype, ROWS, COLS).product(m)
}

/// One row of activations turned into 8-bit blocks, as weights of 4 bits need them.
pub fn quantise(isa: Isa) -> Ready {
    let pool = ThreadPool::new(1);
    let (x, mut act) = (noise(COLS), Activations::new());
    Ready::new(move || {
        act.prepare(&pool, isa, black_box(&x), 1, COLS, act.forms(isa, 1, &[DType::Q4_0]))
            .expect("sizes agree");
    })
}

/// One token's attention to `depth` positions: 32 query heads over 4 KV heads of 64 elements, f16.
pub fn attend(isa: Isa, depth: usize) -> Ready {
    let shape = AttnShape {
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        scale: 0.125,
        window: None,
        deterministic: false,
    };
    let row = shape.heads * shape.head_dim;
    let stored = noise(depth * shape.kv_heads * shape.head_dim);
    let stored: Vec<u8> = stored.into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
    let (pool, mut scratch) = (ThreadPool::new(1), AttnScratch::new());
    let (q, mut y) = (noise(row), vec![0.0; row]);
    Ready::new(move || {
        let kv = [KvSegment::tokens(DType::F16, depth, &stored, &stored)];
        let y = black_box(&mut y);
        attention(&pool, isa, &shape, &q, row, depth - 1, &kv, y, &mut scratch)
            .expect("sizes agree");
    })
}

/// RMSNorm of 2048 elements.
pub fn rmsnorm(isa: Isa) -> Ready {
    let (x, weight, mut y) = (noise(COLS), noise(COLS), vec![0.0; COLS]);
    Ready::new(move || {
        ops::rmsnorm(isa, black_box(&x), &weight, 1e-5, &mut y).expect("sizes agree");
    })
}

/// `RoPE` of 32 heads of 64 elements.
pub fn rope(isa: Isa) -> Ready {
    let (heads, dim) = (32, 64);
    let shape = RopeShape { batch: 1, seq: 1, heads, dim, dim_half: dim / 2, interleaved: false };
    let (x, freqs, mut y) = (noise(heads * dim), noise(dim), vec![0.0; heads * dim]);
    Ready::new(move || {
        ops::rope(isa, &shape, black_box(&x), &freqs, &mut y).expect("sizes agree");
    })
}

/// `SwiGLU` of 5632 elements.
pub fn swiglu(isa: Isa) -> Ready {
    let (gate, up, mut y) = (noise(5632), noise(5632), vec![0.0; 5632]);
    Ready::new(move || {
        ops::swiglu(isa, black_box(&gate), &up, &mut y).expect("sizes agree");
    })
}

/// 2048 elements packed into `q8_0` blocks.
pub fn kv_pack(isa: Isa) -> Ready {
    let (x, mut blocks) = (noise(COLS), q8_0_bytes());
    Ready::new(move || {
        ops::kv_pack_q8(isa, black_box(&x), &mut blocks).expect("sizes agree");
    })
}

/// 2048 elements unpacked from `q8_0` blocks.
pub fn kv_unpack(isa: Isa) -> Ready {
    let (mut blocks, mut y) = (q8_0_bytes(), vec![0.0; COLS]);
    ops::kv_pack_q8(isa, &noise(COLS), &mut blocks).expect("sizes agree");
    Ready::new(move || {
        ops::kv_unpack_q8(isa, black_box(&blocks), &mut y).expect("sizes agree");
    })
}

/// `LoRA` of rank 8 on 2048 inputs and outputs.
pub fn lora(isa: Isa) -> Ready {
    let shape = LoraShape { rows: 1, in_dim: COLS, rank: 8, out_dim: COLS, scale: 1.0 };
    let (a, b) = (noise(shape.rank * COLS), noise(shape.rank * COLS));
    let ab = ops::lora_interleave(&shape, &a, &b).expect("sizes agree");
    let (x, mut y) = (noise(COLS), vec![0.0; COLS]);
    Ready::new(move || {
        ops::lora_apply(isa, &shape, black_box(&x), &ab, &mut y).expect("sizes agree");
    })
}

/// RMSNorm of 2048 elements called through the host, which `policy` has answer with the core pack's
/// kernel or with its native twin. Verification and compilation are over.
#[cfg(feature = "host")]
pub fn host_call(policy: Policy) -> Ready {
    // Checks of a sample of the calls would be counted in some and not in others.
    let config = HostConfig { policy, cross_check_every: 0, ..HostConfig::default() };
    let host = Host::new(config).expect("a host");
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default())
        .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
        .expect("the committed core pack");
    host.install(pack).expect("an admissible pack");
    let snapshot = host.snapshot();
    let slot = snapshot.slot(&OpKey::rmsnorm_f32()).expect("the operation");
    let mut worker = host.worker().expect("a worker");
    let (x, weight) = (noise(COLS), Resident::from_f32(&noise(COLS)));
    let mut y = vec![0; size_of::<f32>() * COLS];
    Ready::new(move || {
        let x = Operand::f32(black_box(&x));
        let call = OpCall::rmsnorm(x, weight.all(), 1, COLS as u32, 1e-5);
        worker.call(&snapshot, slot, &call, &mut y).expect("a call that fits");
    })
}

fn q8_0_bytes() -> Vec<u8> {
    vec![0; DType::Q8_0.bytes_for(COLS).expect("whole blocks")]
}

/// Bits whose f16 and f32 readings are all finite; counts do not depend on the values.
fn weights(dtype: DType, elems: usize) -> Vec<u8> {
    let bytes = dtype.bytes_for(elems).expect("whole blocks");
    random().map(|bits| (bits >> 24) as u8 & 0x3f).take(bytes).collect()
}

/// `n` numbers in -1..1.
fn noise(n: usize) -> Vec<f32> {
    random().map(|bits| (bits >> 8) as f32 / (1 << 23) as f32 - 1.0).take(n).collect()
}

/// Always the same.
fn random() -> impl Iterator<Item = u32> {
    let mut state = 1u32;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        state
    })
}
