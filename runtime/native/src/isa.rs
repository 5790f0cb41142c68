//! Which vector instructions to use. Callers pass an [`Isa`] explicitly, so that tests and
//! benches reach every path of one machine; nothing reads the environment.
//!
//! Soundness of the SIMD files rests on [`Isa::usable`]: a dispatcher calls it once and enters a
//! `#[target_feature]` function only on its answer.

/// A family of vector instructions, with the features that its kernels may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable Rust: the reference that the others are tested against.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The instructions of [`Isa::Avx2`] on vectors of 128 bits, as wide as those of WebAssembly: what
    /// a sandboxed kernel is fairly compared with. Only ever used where it is asked for.
    Avx2Narrow,
    /// x86-64 with AVX-512 F, BW, VL, DQ and all of [`Isa::Avx2`].
    Avx512,
    /// AArch64 with Advanced SIMD. Dot products and the like are probed inside the kernels.
    Neon,
}

impl Isa {
    /// The fastest that this processor has. Detected once.
    pub fn detect() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa::Scalar)
    }

    /// All that this processor has, slowest first; [`Isa::Scalar`] always leads.
    pub fn available() -> &'static [Isa] {
        if Isa::Avx512.is_available() {
            &[Isa::Scalar, Isa::Avx2, Isa::Avx512]
        } else if Isa::Avx2.is_available() {
            &[Isa::Scalar, Isa::Avx2]
        } else if Isa::Neon.is_available() {
            &[Isa::Scalar, Isa::Neon]
        } else {
            &[Isa::Scalar]
        }
    }

    /// What has vectors of 128 bits, where this processor has wider ones too.
    pub fn narrow() -> Option<Isa> {
        Some(Isa::Avx2Narrow).filter(|isa| isa.is_available())
    }

    /// All that the operations are written for: [`Isa::available`] and [`Isa::narrow`].
    #[cfg(test)]
    pub(crate) fn every() -> impl Iterator<Item = Isa> {
        Isa::available().iter().copied().chain(Isa::narrow())
    }

    /// The same instructions with the widest vectors: matrix products have no others.
    pub(crate) fn widest(self) -> Isa {
        if self == Isa::Avx2Narrow { Isa::Avx2 } else { self }
    }

    /// Whether this processor has every instruction of this family.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Narrow => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// This family where the processor has it, else the best it has. A kernel dispatches on the
    /// answer only, so that passing a foreign `Isa` is slow or fast but never unsound.
    #[inline]
    pub fn usable(self) -> Isa {
        if self.is_available() { self } else { Isa::detect() }
    }

    /// Instructions that kernels of this crate use where a processor has them, by their usual names,
    /// and whether this one does. Empty on processors that have portable kernels only.
    pub fn features() -> Vec<(&'static str, bool)> {
        macro_rules! probe {
            ($detected:ident: $($name:tt)*) => {
                vec![$(($name, std::arch::$detected!($name))),*]
            };
        }
        #[cfg(target_arch = "x86_64")]
        return probe!(is_x86_feature_detected:
            "avx2" "fma" "f16c" "avxvnni"
            "avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vnni" "avx512bf16");
        #[cfg(target_arch = "aarch64")]
        return probe!(is_aarch64_feature_detected: "neon" "dotprod" "i8mm");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return Vec::new();
    }

    /// The name in reports, such as `avx512`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx2Narrow => "avx2-128",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_available_and_comes_first() {
        assert_eq!(Isa::available()[0], Isa::Scalar);
        assert!(Isa::available().contains(&Isa::detect()));
    }

    #[test]
    fn a_foreign_isa_falls_back_to_one_that_the_processor_has() {
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx2Narrow, Isa::Avx512, Isa::Neon] {
            assert!(isa.usable().is_available());
        }
        for isa in Isa::every() {
            assert_eq!(isa.usable(), isa);
        }
        assert!(!Isa::available().contains(&Isa::Avx2Narrow));
    }
}
