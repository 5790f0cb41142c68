//! The host's own code as providers.

use super::{
    AttentionProvider, AttentionSession, EmbedProvider, MatmulProvider, PreparedEmbed,
    PreparedMatmul, Provider, Team,
};
use crate::HostConfig;
use crate::threads::lock;
use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnScratch, AttnSequence, AttnShape, attention, attention_batch};
use ruvllm_native::gemm::{
    ActForm, Activations, MatMut, Method, PackedWeights, Weights, matmul, method, weight_types,
};
use ruvllm_native::quant::dequantize_row;
use ruvllm_native::{Isa, NativeError};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A provider of the host's own.
pub(crate) struct Native {
    pub(crate) id: String,
    pub(crate) provider: Provider,
    /// How it computes on this machine, and why so.
    pub(crate) about: String,
}

/// Every provider of the host's own, in the order in which they are asked, as the host is configured.
pub(crate) fn natives(config: &HostConfig) -> Vec<Native> {
    let mut natives = Vec::new();
    let mut add = |id, provider, about| natives.push(Native { id, provider, about });
    let usable = config.isa.usable();
    let chosen = match usable == Isa::detect() {
        true => format!("{usable}: the fastest instructions that this processor has"),
        false => format!("{usable}: the instructions that the configuration names"),
    };
    for dtype in weight_types() {
        let paths = |packed| paths(dtype, config, packed);
        if config.repack && PackedWeights::pays(dtype, usable) {
            let panels = Provider::Matmul(dtype, Arc::new(Panels(dtype)));
            let why = "packed, since products are faster where weights lie in the order in which they are read";
            add(format!("matmul_{dtype}"), panels, format!("{chosen}; {}; {why}", paths(true)));
        }
        let rows = Provider::Matmul(dtype, Arc::new(Rows(dtype)));
        let why = "needs no second copy of the weights, so it ends the chain";
        add(format!("matmul_{dtype}_rows"), rows, format!("{chosen}; {}; {why}", paths(false)));
        let gather = Provider::Embed(dtype, Arc::new(Gather));
        add(format!("embed_{dtype}"), gather, "rows are read as the file has them".to_owned());
    }
    let about = format!("{chosen}; f32, from any type of the cache");
    add("attention".to_owned(), Provider::Attention(Arc::new(Attention)), about);
    natives
}

/// How products with weights of a type are computed, by the number of their rows.
fn paths(dtype: DType, config: &HostConfig, packed: bool) -> String {
    let path = |rows| {
        let Method { instructions, arithmetic, layout } =
            method(dtype, config.isa, rows, config.bf16, packed)?;
        let weights = match layout {
            "packed" => "packed when a model is loaded",
            "panels" => "rearranged in each product",
            _ => "read as the file has them",
        };
        Some(format!("{arithmetic} with {instructions}, weights {weights}"))
    };
    // In deterministic mode many rows are multiplied as one is.
    let many = if config.deterministic { 1 } else { MANY_ROWS };
    let [one, many] = [1, many].map(|rows| path(rows).unwrap_or_default());
    match one == many {
        true => format!("products of one row and of many: {one}"),
        false => format!("products of one row: {one}; of many: {many}"),
    }
}

/// Rows of a product that stands for those of prompts.
const MANY_ROWS: usize = 32;

/// Weights rearranged into panels, where that pays.
struct Panels(DType);

impl MatmulProvider for Panels {
    fn prepared_bytes(&self, weights: &Weights<'_>, isa: Isa) -> Option<usize> {
        let pays = PackedWeights::pays(self.0, isa);
        pays.then(|| weights.rows() * weights.dtype().bytes_for(weights.cols()).unwrap_or(0))
    }

    fn prepare(
        &self,
        weights: &Weights<'_>,
        team: Team<'_>,
    ) -> Result<Box<dyn PreparedMatmul>, String> {
        let packed = PackedWeights::new(team.pool, team.isa, weights).map_err(failed)?;
        Ok(Box::new(packed))
    }

    fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForm {
        x.form(isa, rows, self.0)
    }
}

impl PreparedMatmul for PackedWeights {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String> {
        let weights = weights.with_packed(self).map_err(failed)?;
        matmul(team.pool, team.isa, &weights, x, y).map_err(failed)
    }
}

/// Weights as the file has them.
struct Rows(DType);

struct InPlace;

impl MatmulProvider for Rows {
    fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(0)
    }

    fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        Ok(Box::new(InPlace))
    }

    fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForm {
        x.form(isa, rows, self.0)
    }
}

impl PreparedMatmul for InPlace {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String> {
        matmul(team.pool, team.isa, weights, x, y).map_err(failed)
    }
}

/// Weights as the host's own code reads them, where it is what has taken them up.
pub(crate) fn native_weights<'a>(
    prepared: &'a dyn PreparedMatmul,
    weights: Weights<'a>,
) -> Option<Weights<'a>> {
    let prepared: &dyn Any = prepared;
    if prepared.is::<InPlace>() {
        return Some(weights);
    }
    weights.with_packed(prepared.downcast_ref()?).ok()
}

struct Gather;

impl EmbedProvider for Gather {
    fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(0)
    }

    fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedEmbed>, String> {
        Ok(Box::new(Gather))
    }
}

impl PreparedEmbed for Gather {
    fn run(
        &self,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        Team { pool, .. }: Team<'_>,
    ) -> Result<(), String> {
        let failure = Mutex::new(None);
        // What takes long is waiting for the memory of rows from anywhere.
        pool.for_chunks(y, table.cols(), &|i, y| {
            let row = tokens.get(i).map_or(&[][..], |token| table.row(*token as usize));
            if let Err(error) = dequantize_row(table.dtype(), row, y) {
                lock(&failure).get_or_insert(failed(error));
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

struct Attention;

impl AttentionProvider for Attention {
    fn open(&self) -> Box<dyn AttentionSession> {
        Box::new(AttnScratch::new())
    }
}

impl AttentionSession for AttnScratch {
    fn run(
        &mut self,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        Team { pool, isa, .. }: Team<'_>,
    ) -> Result<(), String> {
        let row = shape.heads * shape.head_dim;
        match sequences {
            [AttnSequence { q, q_pos, kv, y }] => {
                attention(pool, isa, shape, q, row, *q_pos, kv, y, self)
            }
            sequences => attention_batch(pool, isa, shape, sequences, self),
        }
        .map_err(failed)
    }
}

fn failed(error: NativeError) -> String {
    error.to_string()
}
