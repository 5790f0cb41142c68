//! Rotation angles: the (cos, sin) tables that the RoPE kernels read.
//!
//! RoFormer (Su et al., arXiv 2104.09864): pair `i` of position `p` turns by
//! `p * theta^(-2i / dims)`; scaling stretches these frequencies. Tables are made in blocks of
//! positions as a sequence reaches them, computed in f64 and rounded once.

use ruvllm_host::Resident;

use crate::config::{RopeConfig, RopeScaling};

/// Positions of one table.
pub const BLOCK: usize = 1024;

/// The angle per position of each rotated pair.
pub fn frequencies(config: &RopeConfig) -> Vec<f64> {
    let base = |i: usize| config.theta.powf(-2.0 * i as f64 / config.dims as f64);
    let pairs = 0..config.dims / 2;
    match &config.scaling {
        RopeScaling::None => pairs.map(base).collect(),
        RopeScaling::Linear { factor } => pairs.map(|i| base(i) / factor).collect(),
        RopeScaling::Factors(factors) => {
            pairs.zip(factors).map(|(i, &factor)| base(i) / f64::from(factor)).collect()
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let stretch = |frequency: f64| {
                let turns = original_context * frequency / std::f64::consts::TAU;
                let ramp = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let keep = ramp.clamp(0.0, 1.0);
                frequency * (keep + (1.0 - keep) / factor)
            };
            pairs.map(|i| stretch(base(i))).collect()
        }
    }
}

/// Rotation tables of a model, made as needed.
pub(crate) struct RopeTables {
    frequencies: Vec<f64>,
    blocks: Vec<Resident>,
}

impl RopeTables {
    pub(crate) fn new(config: &RopeConfig) -> RopeTables {
        RopeTables { frequencies: frequencies(config), blocks: Vec::new() }
    }

    /// Makes the tables of all positions below `end`.
    pub(crate) fn reserve(&mut self, end: usize) {
        while self.blocks.len() * BLOCK < end {
            let first = self.blocks.len() * BLOCK;
            self.blocks.push(Resident::from_f32(&table(&self.frequencies, first, BLOCK)));
        }
    }

    /// The table that holds `position`, the byte where the position's row starts, and how many
    /// positions from there on the table has. `None` where nothing is reserved.
    pub(crate) fn at(&self, position: usize) -> Option<(&Resident, usize, usize)> {
        let block = self.blocks.get(position / BLOCK)?;
        let row = position % BLOCK;
        Some((block, row * self.row_bytes(), BLOCK - row))
    }

    /// Bytes of one position.
    pub(crate) fn row_bytes(&self) -> usize {
        self.frequencies.len() * 2 * size_of::<f32>()
    }
}

/// The rows of positions `first .. first + rows` as `[rows, pairs, 2]`.
fn table(frequencies: &[f64], first: usize, rows: usize) -> Vec<f32> {
    let mut table = Vec::with_capacity(rows * frequencies.len() * 2);
    for position in first..first + rows {
        for frequency in frequencies {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            table.extend([cos as f32, sin as f32]);
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
        let mut tables = RopeTables::new(&config(RopeScaling::Linear { factor: 2.0 }));
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
