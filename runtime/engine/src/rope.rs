//! Rotation angles: the (cos, sin) tables that the RoPE kernels read.
//!
//! RoFormer (Su et al., arXiv 2104.09864): pair `i` of position `p` turns by
//! `p * theta^(-2i / dims)`. Scaling stretches these frequencies, so that positions beyond the
//! trained context turn by angles that the model has met: by the model's own configuration, and on
//! top of that by a [`RopeExtension`] that the user asks for. Tables are made in blocks of positions
//! as a sequence reaches them, computed in f64 and rounded once.

use ruvllm_host::Resident;

use crate::config::{ModelConfig, RopeConfig, RopeScaling, Yarn};
use crate::error::EngineError;

/// Positions of one table.
pub const BLOCK: usize = 1024;

/// The longest context that can be asked for.
const MAX_CONTEXT: usize = 1 << 30;

/// A method of stretching a model's context beyond the trained one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeMethod {
    /// [`RopeScaling::Linear`].
    Linear,
    /// [`RopeScaling::Ntk`].
    Ntk,
    /// [`RopeScaling::Yarn`] with the paper's parameters.
    Yarn,
    /// [`RopeScaling::Llama3`] with that model's parameters.
    Llama3,
}

/// How a user wants a model's context stretched.
///
/// It applies to the frequencies that the model was trained with, those of its own scaling
/// included.
///
/// ```
/// use ruvllm_engine::{RopeExtension, RopeMethod};
///
/// // As much as the context needs.
/// let extension = RopeExtension { method: RopeMethod::Yarn, factor: None };
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeExtension {
    /// The method.
    pub method: RopeMethod,
    /// How many times the trained context, at least 1; `None` is what the context needs.
    pub factor: Option<f64>,
}

impl RopeExtension {
    fn scaling(&self, factor: f64, trained: f64) -> RopeScaling {
        match self.method {
            // Every method with nothing to stretch.
            _ if factor == 1.0 => RopeScaling::None,
            RopeMethod::Linear => RopeScaling::Linear { factor },
            RopeMethod::Ntk => RopeScaling::Ntk { factor },
            RopeMethod::Yarn => RopeScaling::Yarn(Yarn::new(factor, trained)),
            RopeMethod::Llama3 => RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: trained,
            },
        }
    }
}

/// The angles of a model's rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// The angle per position of each rotated pair.
    pub frequencies: Vec<f64>,
    /// What cosine and sine are multiplied by.
    pub magnitude: f64,
}

impl Rotation {
    /// The rotation of a model's own configuration for a sequence of `context` tokens, whose length only
    /// [`RopeScaling::DynamicNtk`] depends on, and only beyond the trained context.
    pub fn new(config: &RopeConfig, context: usize) -> Rotation {
        let pairs = 0..config.dims / 2;
        let base = |i: usize| config.theta.powf(-2.0 * i as f64 / config.dims as f64);
        let mut rotation = Rotation { frequencies: pairs.map(base).collect(), magnitude: 1.0 };
        rotation.stretch(&config.scaling, config, context as f64);
        rotation
    }

    /// The tokens that a session holds at most, and the rotation for them. `ctx` is what the user
    /// asks for, or `None` for all that the model and its extension give.
    ///
    /// # Errors
    /// [`EngineError::ContextOutOfRange`] beyond the trained context without an extension,
    /// [`EngineError::DynamicRope`] there for a model with [`RopeScaling::DynamicNtk`], and
    /// [`EngineError::InvalidOption`] for a factor that is no number from 1 on or too small for the
    /// context.
    pub fn for_context(
        config: &ModelConfig,
        ctx: Option<usize>,
        extension: Option<&RopeExtension>,
    ) -> Result<(usize, Rotation), EngineError> {
        let rope = &config.rope;
        let trained = config.context;
        let Some(extension) = extension else {
            let context = ctx.unwrap_or(trained);
            // Beyond it a key's angle would depend on the length of the sequence at the time: blocks that
            // sequences share, and ones that are computed again, would not be what they were.
            if let RopeScaling::DynamicNtk { .. } = rope.scaling
                && context > trained
            {
                return Err(EngineError::DynamicRope { context, trained });
            }
            if context == 0 || context > trained {
                return Err(EngineError::ContextOutOfRange { context, trained });
            }
            return Ok((context, Rotation::new(rope, context)));
        };
        let refuse = |option, value: &dyn ToString, reason| {
            Err(EngineError::InvalidOption { option, value: value.to_string(), reason })
        };
        let needed = ctx.map_or(1.0, |context| context as f64 / trained as f64).max(1.0);
        let factor = extension.factor.unwrap_or(needed);
        if !(factor.is_finite() && factor >= 1.0) {
            return refuse("rope factor", &factor, "it must be a number from 1 on");
        }
        let context = ctx.unwrap_or(times(trained, factor));
        if context == 0 || context > MAX_CONTEXT {
            return refuse("context", &context, "it must be from 1 to 2^30");
        }
        if factor < needed {
            let reason = "the context is longer than the trained one times this; give a larger \
                          factor, or none to have the right one";
            return refuse("rope factor", &factor, reason);
        }
        let mut rotation = Rotation::new(rope, trained);
        rotation.stretch(&extension.scaling(factor, trained as f64), rope, context as f64);
        Ok((context, rotation))
    }

    fn stretch(&mut self, scaling: &RopeScaling, config: &RopeConfig, context: f64) {
        let frequencies = self.frequencies.iter_mut();
        match scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => frequencies.for_each(|f| *f /= factor),
            RopeScaling::Ntk { factor } => self.stretch_base(*factor, config.dims),
            RopeScaling::DynamicNtk { factor, original_context } => {
                let times = (context / original_context).max(1.0);
                self.stretch_base(factor * times - (factor - 1.0), config.dims);
            }
            RopeScaling::Factors(factors) => {
                frequencies.zip(factors).for_each(|(f, &factor)| *f /= f64::from(factor));
            }
            RopeScaling::Yarn(yarn) => {
                let ramp = yarn_ramp(yarn, config);
                for (i, f) in frequencies.enumerate() {
                    let keep =
                        1.0 - ((i as f64 - ramp.start) / (ramp.end - ramp.start)).clamp(0.0, 1.0);
                    *f *= keep + (1.0 - keep) / yarn.factor;
                }
                self.magnitude *= yarn.attention_factor;
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                for f in frequencies {
                    let turns = original_context * *f / std::f64::consts::TAU;
                    let ramp = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    let keep = ramp.clamp(0.0, 1.0);
                    *f *= keep + (1.0 - keep) / factor;
                }
            }
        }
    }

    /// The frequencies of `theta * factor^(dims / (dims - 2))`. The first pair's is 1 for any base.
    fn stretch_base(&mut self, factor: f64, dims: usize) {
        for (i, f) in self.frequencies.iter_mut().enumerate().skip(1) {
            *f *= factor.powf(-2.0 * i as f64 / (dims - 2) as f64);
        }
    }
}

/// `factor` times as many tokens, as far as a context may go.
fn times(tokens: usize, factor: f64) -> usize {
    ((tokens as f64 * factor) as usize).min(MAX_CONTEXT)
}

/// The pairs between which YaRN goes over from keeping to dividing. A pair that turns `n` times in
/// the original context has the index `dims * ln(original / (n * 2 pi)) / (2 ln theta)`.
fn yarn_ramp(yarn: &Yarn, config: &RopeConfig) -> std::ops::Range<f64> {
    let dims = config.dims as f64;
    let pair = |turns: f64| {
        dims * (yarn.original_context / (turns * std::f64::consts::TAU)).ln()
            / (2.0 * config.theta.ln())
    };
    let (mut low, mut high) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dims - 1.0));
    // Never empty, so that nothing is divided by zero; the bound is the reference's.
    low..high.max(low + 0.001)
}

/// Rotation tables of a model, made as needed.
pub(crate) struct RopeTables {
    rotation: Rotation,
    blocks: Vec<Resident>,
}

impl RopeTables {
    pub(crate) fn new(rotation: Rotation) -> RopeTables {
        RopeTables { rotation, blocks: Vec::new() }
    }

    /// Makes the tables of all positions below `end`.
    pub(crate) fn reserve(&mut self, end: usize) {
        while self.blocks.len() * BLOCK < end {
            let first = self.blocks.len() * BLOCK;
            self.blocks.push(Resident::from_f32(&table(&self.rotation, first, BLOCK)));
        }
    }

    /// The table that holds `position`, the byte where the position's row starts, and how many
    /// positions from there on the table has. `None` where nothing is reserved.
    pub(crate) fn at(&self, position: usize) -> Option<(&Resident, usize, usize)> {
        let block = self.blocks.get(position / BLOCK)?;
        let row = position % BLOCK;
        Some((block, row * self.row_bytes(), BLOCK - row))
    }

    /// Cosine and minus sine of each pair for turning back by `positions` positions what has been turned
    /// and scaled already: `[pairs, 2]`.
    pub(crate) fn back(&self, positions: usize) -> Vec<f32> {
        let frequencies = self.rotation.frequencies.iter();
        let pair = frequencies.flat_map(|frequency| {
            let (sin, cos) = (positions as f64 * frequency).sin_cos();
            [cos as f32, -sin as f32]
        });
        pair.collect()
    }

    /// Bytes of one position.
    pub(crate) fn row_bytes(&self) -> usize {
        self.rotation.frequencies.len() * 2 * size_of::<f32>()
    }
}

/// The rows of positions `first .. first + rows` as `[rows, pairs, 2]`.
fn table(rotation: &Rotation, first: usize, rows: usize) -> Vec<f32> {
    let Rotation { frequencies, magnitude } = rotation;
    let mut table = Vec::with_capacity(rows * frequencies.len() * 2);
    for position in first..first + rows {
        for frequency in frequencies {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            table.extend([(cos * magnitude) as f32, (sin * magnitude) as f32]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RopeLayout;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 500_000.0, dims: 128, layout: RopeLayout::NeoX, scaling }
    }

    fn frequencies(config: &RopeConfig) -> Vec<f64> {
        Rotation::new(config, 8192).frequencies
    }

    #[test]
    fn llama3_scaling_keeps_high_and_divides_low_frequencies() {
        let plain = frequencies(&config(RopeScaling::None));
        let scaled = frequencies(&config(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        }));
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        // Between the two wavelengths the published formula, written out for pair 32.
        let wavelength = std::f64::consts::TAU / plain[32];
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        assert!((0.0..1.0).contains(&smooth), "{smooth}");
        let expected = (1.0 - smooth) * plain[32] / 8.0 + smooth * plain[32];
        assert!((scaled[32] - expected).abs() < 1e-15);
    }

    #[test]
    fn a_position_is_found_in_its_block() {
        let rotation = Rotation::new(&config(RopeScaling::Linear { factor: 2.0 }), 8192);
        let mut tables = RopeTables::new(rotation);
        assert!(tables.at(0).is_none());
        tables.reserve(BLOCK + 1);
        let (block, start, left) = tables.at(BLOCK + 3).unwrap();
        assert_eq!(left, BLOCK - 3);
        let row = &bytemuck::cast_slice::<u8, f32>(block.bytes())[start / 4..];
        let angle = (BLOCK + 3) as f64 / 2.0;
        assert_eq!(row[..2], [angle.cos() as f32, angle.sin() as f32]);
        assert!(tables.at(2 * BLOCK).is_none());
    }
}
