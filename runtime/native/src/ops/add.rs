//! Element-wise addition, for residual connections and biases.

use super::simd::{Simd, SimdOp, dispatch};
use crate::{Isa, NativeError};

/// `x += y`, element by element.
///
/// # Errors
/// [`NativeError::Shape`] where the lengths differ.
pub fn add(isa: Isa, x: &mut [f32], y: &[f32]) -> Result<(), NativeError> {
    NativeError::check("add: y elements", x.len(), y.len())?;
    match isa {
        Isa::Scalar => x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
        _ => dispatch(isa, Add { x, y }),
    }
    Ok(())
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl SimdOp for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut x = self.x.chunks_exact_mut(S::LANES);
        let mut y = self.y.chunks_exact(S::LANES);
        for (x, y) in (&mut x).zip(&mut y) {
            s.store(s.add(s.load(x), s.load(y)), x);
        }
        for (x, y) in x.into_remainder().iter_mut().zip(y.remainder()) {
            *x += y;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{LENGTHS, noise};

    #[test]
    fn sums_are_exact_to_the_bit_on_every_isa() {
        for isa in Isa::every() {
            for n in LENGTHS {
                let (a, b) = (noise(n, 1), noise(n, 2));
                let mut x = a.clone();
                add(isa, &mut x, &b).unwrap();
                assert!((0..n).all(|i| x[i] == a[i] + b[i]), "{isa} {n}");
            }
        }
        assert!(add(Isa::detect(), &mut [0.0; 3], &[0.0; 2]).is_err());
    }
}
