//! Outputs compared with the truth, element by element.

use super::{Tolerance, Wrong};
use crate::{NativeError, quant};
use ruvllm_abi::{DType, f16_to_f32};

/// The smallest step of a format: what rounding costs where relative error means nothing.
fn floor(dtype: DType) -> f64 {
    let half_step = 2f64.powi(-24);
    match dtype {
        DType::F32 | DType::BF16 => 16.0 * 2f64.powi(-149),
        DType::Q8_0 => 128.0 * half_step,
        DType::Q4_0 => 8.0 * half_step,
        _ => half_step,
    }
}

/// How an output is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) dtype: DType,
    pub(super) tolerance: Tolerance,
    /// The author's own, which is absolute for rows of magnitude up to one.
    pub(super) author: Option<Tolerance>,
    /// Elements of a row.
    pub(super) row: usize,
    /// Factor on the floor, where the operation sums what it rounds.
    pub(super) floor: f64,
    /// Factor on all else that is allowed.
    pub(super) slack: f64,
    /// Whether it is the oracle that says what is not finite. Native code may round to infinity what a
    /// kernel does not.
    pub(super) by_oracle: bool,
}

impl Comparison {
    /// Holds `got` against `want`, which is the truth. Where the oracle says NaN or an infinity, no finite
    /// number is right. Elements whose truth is only beyond the format are left out.
    ///
    /// # Errors
    /// [`Wrong::NonFinite`] and [`Wrong::Mismatch`].
    pub(super) fn check(&self, got: &[f32], want: &[f64]) -> Result<(), Wrong> {
        if got.len() != want.len() {
            let detail = format!("{} elements instead of {}", got.len(), want.len());
            return Err(Wrong::Mismatch { detail });
        }
        let group = self.group();
        for (g, (got, want)) in got.chunks(group).zip(want.chunks(group)).enumerate() {
            let allowed = self.allowed(want);
            let is_near = |(&got, &want): (&f32, &f64)| {
                // What an infinity may be off by is infinite.
                (off(got, want) <= allowed(want)) & want.is_finite()
            };
            // Without a branch for each: nearly always all are, and what is no number is not.
            if got.iter().zip(want).fold(true, |all, pair| all & is_near(pair)) {
                continue;
            }
            for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
                let index = g * group + i;
                if self.by_oracle && !want.is_finite() && got.is_finite() {
                    let detail = format!(
                        "element {index} is {got:e} instead of {want}: what comes of NaN or an \
                         infinity is not made a finite number"
                    );
                    return Err(Wrong::Mismatch { detail });
                }
                if !self.is_finite(want) {
                    continue;
                }
                if !got.is_finite() {
                    return Err(Wrong::NonFinite { index });
                }
                let (off, allowed) = (off(got, want), allowed(want));
                if off > allowed {
                    let detail = format!(
                        "element {index} is {got:e} instead of {want:e}: off by {off:.2e}, \
                         {allowed:.2e} is allowed"
                    );
                    return Err(Wrong::Mismatch { detail });
                }
            }
        }
        Ok(())
    }

    /// The largest error as a share of what is allowed, of an output that is right.
    pub(super) fn worst(&self, got: &[f32], want: &[f64]) -> f64 {
        let group = self.group();
        let groups = got.chunks(group).zip(want.chunks(group));
        let shares = groups.flat_map(|(got, want)| {
            let allowed = self.allowed(want);
            let judged = got.iter().zip(want).filter(|(_, want)| self.is_finite(**want));
            judged.map(move |(&got, &want)| off(got, want) / allowed(want))
        });
        shares.fold(0.0, f64::max)
    }

    /// Elements that share a scale.
    fn group(&self) -> usize {
        match self.dtype.layout().elems {
            1 => self.row.max(1),
            block => block,
        }
    }

    /// What elements of a row or block may be off by.
    fn allowed(&self, want: &[f64]) -> impl Fn(f64) -> f64 + use<> {
        let Self { author, slack, .. } = *self;
        let (scale, floor) = (self.scale(want), floor(self.dtype) * self.floor);
        let Tolerance { rel, abs } = self.tolerance;
        move |want| {
            let mut allowed = abs * scale + rel * want.abs();
            if let Some(Tolerance { rel, abs }) = author {
                allowed = allowed.min(abs * scale.max(1.0) + rel * want.abs());
            }
            allowed * slack + floor
        }
    }

    /// The largest magnitude of a row or block.
    fn scale(&self, want: &[f64]) -> f64 {
        // Several at a time, as a processor's vectors can.
        let mut largest = [0f64; 8];
        let mut take = |want: &[f64]| {
            for (largest, want) in largest.iter_mut().zip(want) {
                let finite = if self.is_finite(*want) { want.abs() } else { 0.0 };
                *largest = if finite > *largest { finite } else { *largest };
            }
        };
        let (eights, rest) = want.as_chunks::<8>();
        eights.iter().for_each(|eight| take(eight));
        take(rest);
        largest.into_iter().fold(0.0, f64::max)
    }

    /// Whether the truth is a number that the format has.
    fn is_finite(&self, want: f64) -> bool {
        want.is_finite() && want.abs() < self.largest()
    }

    fn largest(&self) -> f64 {
        match self.dtype {
            DType::F16 => 65_504.0,
            DType::Q8_0 => 65_504.0 * 127.0,
            DType::Q4_0 => 65_504.0 * 8.0,
            _ => f64::from(f32::MAX),
        }
    }
}

fn off(got: f32, want: f64) -> f64 {
    (f64::from(got) - want).abs()
}

/// Holds the numbers of native code against the truth: fails unless each is within `relative * |want| + absolute`.
#[cfg(test)]
#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], want: &[f64], relative: f64, absolute: f64) {
    let dtype = DType::F32;
    let comparison = Comparison {
        dtype,
        tolerance: Tolerance { rel: relative, abs: 0.0 },
        author: None,
        row: want.len(),
        floor: absolute / floor(dtype),
        slack: 1.0,
        by_oracle: true,
    };
    if let Err(wrong) = comparison.check(got, want) {
        panic!("{what}: {wrong}");
    }
}

/// Reads the elements of a tensor as numbers.
///
/// # Errors
/// [`NativeError`] where the bytes are not whole blocks, or of a type that stands for no numbers.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut Vec<f32>) -> Result<(), NativeError> {
    let layout = dtype.layout();
    let elems = bytes.len() / layout.bytes * layout.elems;
    out.clear();
    let word = |b: &[u8]| [b[0], b[1], b[2], b[3]];
    match dtype {
        DType::F32 => out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(word(b)))),
        DType::U32 => out.extend(bytes.chunks_exact(4).map(|b| u32::from_le_bytes(word(b)) as f32)),
        DType::I32 => out.extend(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(word(b)) as f32)),
        DType::U8 => out.extend(bytes.iter().map(|&b| f32::from(b))),
        DType::F16 => {
            let half = |b: &[u8]| f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
            out.extend(bytes.chunks_exact(2).map(half));
        }
        _ => {
            out.resize(elems, 0.0);
            quant::dequantize_row(dtype, bytes, out)?;
        }
    }
    Ok(())
}

/// Compares packed blocks byte by byte with the reference's.
///
/// The format leaves two things open, and those are not compared: a block with an input that is not
/// finite, and the quants of a block whose scale is stored as zero.
///
/// # Errors
/// [`Wrong::Mismatch`] with the first block that differs.
pub(super) fn exact_blocks(dtype: DType, x: &[u8], got: &[u8], want: &[u8]) -> Result<(), Wrong> {
    let layout = dtype.layout();
    let inputs = x.chunks_exact(4 * layout.elems);
    let blocks = got.chunks_exact(layout.bytes).zip(want.chunks_exact(layout.bytes));
    for (index, ((got, want), x)) in blocks.zip(inputs).enumerate() {
        let finite = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite();
        if got == want || !x.chunks_exact(4).all(finite) {
            continue;
        }
        if got[..2] == want[..2] && want[0] == 0 && want[1] & 0x7f == 0 {
            continue;
        }
        let at = got.iter().zip(want).position(|(g, w)| g != w).unwrap_or(0);
        let detail = format!(
            "byte {at} of block {index} is {:#04x} instead of {:#04x}: the format defines every \
             byte",
            got[at], want[at]
        );
        return Err(Wrong::Mismatch { detail });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(dtype: DType) -> Comparison {
        let tolerance = Tolerance { rel: 1e-5, abs: 1e-6 };
        let by_oracle = true;
        Comparison { dtype, tolerance, author: None, row: 2, floor: 1.0, slack: 1.0, by_oracle }
    }

    #[test]
    fn tiny_and_huge_rows_are_judged_at_their_own_scale() {
        let judge = judge(DType::F32);
        assert!(judge.check(&[1e-20, 2e-20], &[1e-20, 2e-20]).is_ok());
        assert!(judge.check(&[1.1e-20, 2e-20], &[1e-20, 2e-20]).is_err());
        // Cancellation beside a large element is forgiven, on its own it is not.
        assert!(judge.check(&[1e10, 500.0], &[1e10, 0.0]).is_ok());
        assert!(judge.check(&[1.0, 500.0], &[1.0, 0.0]).is_err());
    }

    #[test]
    fn one_wrong_element_is_found_wherever_it_is() {
        let judge = Comparison { row: 19, ..judge(DType::F32) };
        let want: Vec<f64> = (1..=38).map(f64::from).collect();
        let right: Vec<f32> = (1..=38).map(|x| x as f32).collect();
        judge.check(&right, &want).unwrap();
        for at in 0..right.len() {
            let mut got = right.clone();
            got[at] += 0.1;
            let failure = judge.check(&got, &want).unwrap_err().to_string();
            assert!(failure.contains(&format!("element {at} is")), "{failure}");
            got[at] = f32::NAN;
            assert_eq!(judge.check(&got, &want), Err(Wrong::NonFinite { index: at }));
            // The largest magnitude counts from wherever it is, and only in its own row.
            let (mut got, mut want) = (right.clone(), want.clone());
            (got[at], want[at]) = (1e7, 1e7);
            let (same, other) = if at < 19 { (0, 37) } else { (37, 0) };
            if at != same {
                got[same] += 5.0;
                judge.check(&got, &want).unwrap();
            }
            got[other] += 5.0;
            judge.check(&got, &want).unwrap_err();
        }
    }

    #[test]
    fn what_is_not_finite_is_told_apart() {
        let judge = judge(DType::F16);
        assert_eq!(judge.check(&[f32::NAN], &[1.0]), Err(Wrong::NonFinite { index: 0 }));
        assert!(judge.check(&[f32::INFINITY], &[1e9]).is_ok());
        assert!(judge.check(&[f32::NAN], &[f64::NAN]).is_ok());
    }

    #[test]
    fn what_the_oracle_calls_not_finite_is_never_a_finite_number() {
        let judge = judge(DType::F32);
        for want in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            judge.check(&[f32::NAN, 1.0], &[want, 1.0]).unwrap();
            judge.check(&[f32::INFINITY, 1.0], &[want, 1.0]).unwrap();
            for got in [0.0, 1.0, f32::MAX] {
                let wrong = judge.check(&[got, 1.0], &[want, 1.0]).unwrap_err().to_string();
                assert!(wrong.contains("element 0 is") && wrong.contains("not made a finite"));
            }
            // Its neighbours are judged as ever.
            judge.check(&[f32::NAN, 1.1], &[want, 1.0]).unwrap_err();
            // Native code is no oracle.
            Comparison { by_oracle: false, ..judge }.check(&[0.0, 1.0], &[want, 1.0]).unwrap();
        }
    }

    #[test]
    fn what_the_format_cannot_hold_counts_in_no_scale() {
        let judge = judge(DType::F16);
        // 1e9 is beyond binary16; beside it, 1 may be off by no more than on its own.
        judge.check(&[f32::INFINITY, 1.0], &[1e9, 1.0]).unwrap();
        judge.check(&[f32::INFINITY, 1.1], &[1e9, 1.0]).unwrap_err();
    }

    #[test]
    fn blocks_are_compared_byte_by_byte_but_for_what_means_nothing() {
        let x: Vec<u8> = [1f32; 32].iter().flat_map(|x| x.to_le_bytes()).collect();
        let block = |scale: [u8; 2], quant| [&scale[..], &[quant; 16]].concat();
        let same = |got: &[u8], want: &[u8]| exact_blocks(DType::Q4_0, &x, got, want).is_ok();
        assert!(same(&block([0, 0x80], 8), &block([0, 0x80], 7)));
        assert!(!same(&block([1, 0x30], 8), &block([1, 0x30], 7)));
        assert!(!same(&block([1, 0x30], 7), &block([0, 0x80], 7)));
    }

    #[test]
    fn an_author_can_only_be_stricter() {
        let strict =
            Comparison { author: Some(Tolerance { rel: 0.0, abs: 0.0 }), ..judge(DType::F32) };
        assert!(strict.check(&[1.000001], &[1.0]).is_err());
        let loose =
            Comparison { author: Some(Tolerance { rel: 1.0, abs: 1.0 }), ..judge(DType::F32) };
        assert!(loose.check(&[1.1], &[1.0]).is_err());
    }
}
