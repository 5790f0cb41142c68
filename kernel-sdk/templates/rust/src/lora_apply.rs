//! The low-rank update of Hu et al., arXiv 2106.09685.
//!
//! The factors come in groups of four: a group of `A` has for each rank the elements
//! `A[r][4g .. 4g + 4]`, a group of `B` the elements `B[4h .. 4h + 4][r]`. What lies beyond the true
//! dimension is zero.

/// `y = scale * (x A^T) B^T` for one row; `low` has room for a number of each rank.
pub fn lora_row(
    x: &[f32],
    a: &[[f32; 4]],
    b: &[[f32; 4]],
    scale: f32,
    low: &mut [f32],
    y: &mut [f32],
) {
    let rank = low.len().max(1);
    low.fill(0.0);
    for (x, group) in x.chunks(4).zip(a.chunks_exact(rank)) {
        for (low, a) in low.iter_mut().zip(group) {
            *low += x.iter().zip(a).map(|(x, a)| x * a).sum::<f32>();
        }
    }
    for (y, group) in y.chunks_mut(4).zip(b.chunks_exact(rank)) {
        let mut sums = [0.0; 4];
        for (low, b) in low.iter().zip(group) {
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += low * b);
        }
        y.iter_mut().zip(sums).for_each(|(y, sum)| *y = scale * sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_factors_are_applied_and_scaled() {
        // A is [1, 2], B is [3, 4] transposed.
        let (a, b) = ([[1.0, 2.0, 0.0, 0.0]], [[3.0, 4.0, 0.0, 0.0]]);
        let mut y = [9.0; 2];
        lora_row(&[1.0, 1.0], &a, &b, 0.5, &mut [7.0], &mut y);
        assert_eq!(y, [4.5, 6.0]);
    }
}
