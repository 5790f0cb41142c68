//! Calls over rows as all blocks make them: norms and products, and where what products read goes.

use ruvllm_host::Team;
use ruvllm_native::gemm::Activations;
use ruvllm_native::{ThreadPool, ops};

use crate::config::NormKind;
use crate::error::EngineError;
use crate::kernels::{Kernels, RowScopes, RowSink};
use crate::memory::room;
use crate::weights::{Linear, NormWeights};

/// Room for `[rows, cols]` that products with these matrices read, in `plain` too if there is one.
pub(super) fn row_sink<'a>(
    kernels: &Kernels,
    team: Team<'_>,
    activations: &'a mut Activations,
    plain: Option<&'a mut Vec<f32>>,
    [rows, cols]: [usize; 2],
    read_by: &[&Linear],
) -> Result<RowSink<'a>, EngineError> {
    let plain = plain.map(|plain| room(plain, rows * cols));
    let forms = kernels.reads(team.isa, activations, rows, read_by);
    Ok(RowSink { products: activations.rows_mut(team.isa, rows, cols, forms)?, plain })
}

/// `x += delta`, then `y = norm(x)`, over rows `[m, dim]`; without `delta` `x` is the sum already.
pub(super) fn apply_norm(
    kernels: &mut Kernels,
    pool: &ThreadPool,
    scopes: &RowScopes,
    x: &mut [f32],
    delta: Option<&[f32]>,
    NormWeights { norm, weight }: &NormWeights,
    y: RowSink<'_>,
) -> Result<(), EngineError> {
    match norm.kind {
        NormKind::Rms => kernels.rmsnorm(pool, scopes, x, delta, weight, norm.eps, y),
    }
}

/// `y = x W^T + bias` for the prepared `x` and each matrix with its `y`.
pub(super) fn project(
    kernels: &mut Kernels,
    team: Team<'_>,
    x: &Activations,
    outputs: &mut [(&Linear, &mut [f32])],
) -> Result<(), EngineError> {
    kernels.matmul(team, x, outputs)?;
    for (linear, y) in outputs {
        if let Some(bias) = &linear.bias {
            for row in y.chunks_exact_mut(linear.rows()) {
                ops::add(team.isa, row, bias)?;
            }
        }
    }
    Ok(())
}
