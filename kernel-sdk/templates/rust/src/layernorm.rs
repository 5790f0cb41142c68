//! Layer normalisation (Ba, Kiros and Hinton, arXiv 1607.06450).

use ruvllm_kernel_sdk::simd::sqrt;

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias` for one row; all slices have the same length.
pub fn layernorm_row(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    // In f64, so that rows of any finite numbers come out right.
    let n = x.len() as f64;
    let mean = sum(x, |x| x) / n;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / n;
    let scale = 1.0 / sqrt(variance + f64::from(eps));
    for (((x, w), b), y) in x.iter().zip(weight).zip(bias).zip(y) {
        *y = ((f64::from(*x) - mean) * scale * f64::from(*w) + f64::from(*b)) as f32;
    }
}

/// The sum of a function of the elements, in four sums, because a processor can add to one while it
/// waits for another.
fn sum(x: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    let (quads, rest) = x.as_chunks::<4>();
    let mut sums = [0f64; 4];
    for quad in quads {
        for (sum, x) in sums.iter_mut().zip(quad) {
            *sum += of(f64::from(*x));
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|x| of(f64::from(*x))).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_mean_taken_off_and_is_divided_by_its_deviation() {
        let mut y = [0.0; 2];
        layernorm_row(&[1.0, 3.0], &[1.0, 2.0], &[0.5, 0.0], 0.0, &mut y);
        assert_eq!(y, [-0.5, 2.0]);
    }

    #[test]
    fn a_row_of_one_value_becomes_the_bias() {
        let mut y = [9.0; 5];
        layernorm_row(&[7.0; 5], &[1.0; 5], &[0.25; 5], 1e-5, &mut y);
        assert_eq!(y, [0.25; 5]);
    }
}
