//! An operation of your own: hosts that have never heard of it call it by name, by its manifest.

/// `y = a * x + b`, element by element; both slices have the same length.
pub fn affine(a: f32, b: f32, x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = a * x + b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_scaled_and_shifted() {
        let mut y = [9.0; 3];
        affine(2.0, -1.0, &[0.0, 1.0, -0.5], &mut y);
        assert_eq!(y, [-1.0, 1.0, -2.0]);
    }
}
