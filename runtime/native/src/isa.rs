//! Which vector instructions to use. Callers pass an [`Isa`] explicitly, so that tests and
//! benches reach every path of one machine; nothing reads the environment.
//!
//! Soundness of the SIMD files rests on [`Isa::usable`]: a dispatcher calls it once and enters a
//! `#[target_feature]` function only on its answer.

use std::sync::LazyLock;

/// A set of vector instructions that kernels may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable Rust: the reference that the others are tested against.
    Scalar,
    /// The instructions of [`Isa::Avx2`] on vectors of 128 bits, as wide as those of WebAssembly: what
    /// a sandboxed kernel is fairly compared with. Only ever used where it is asked for.
    Avx2Narrow,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// [`Isa::Avx2`] with the 8-bit dot products of AVX-VNNI.
    Avx2Vnni,
    /// x86-64 with AVX-512 F, BW, VL, DQ and all of [`Isa::Avx2`].
    Avx512,
    /// [`Isa::Avx512`] with the 8-bit dot products of AVX-512 VNNI.
    Avx512Vnni,
    /// AArch64 with Advanced SIMD.
    Neon,
    /// [`Isa::Neon`] with the 8-bit dot products of Armv8.2.
    NeonDotprod,
    /// [`Isa::NeonDotprod`] with the 8-bit matrix products of Armv8.6.
    NeonI8mm,
}

/// All of [`Isa`], slower ones before faster ones.
const ALL: [Isa; 9] = [
    Isa::Scalar,
    Isa::Avx2Narrow,
    Isa::Avx2,
    Isa::Avx2Vnni,
    Isa::Avx512,
    Isa::Avx512Vnni,
    Isa::Neon,
    Isa::NeonDotprod,
    Isa::NeonI8mm,
];

impl Isa {
    /// The fastest that this processor has.
    pub fn detect() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa::Scalar)
    }

    /// All that this processor has, slowest first; [`Isa::Scalar`] always leads. [`Isa::narrow`] is not
    /// among them. Detected once.
    pub fn available() -> &'static [Isa] {
        static AVAILABLE: LazyLock<Vec<Isa>> = LazyLock::new(|| {
            let usable = |isa: &Isa| isa.is_available() && *isa != Isa::Avx2Narrow;
            ALL.into_iter().filter(usable).collect()
        });
        &AVAILABLE
    }

    /// What has vectors of 128 bits, where this processor has wider ones too.
    pub fn narrow() -> Option<Isa> {
        Some(Isa::Avx2Narrow).filter(|isa| isa.is_available())
    }

    /// The set of that name, whether the processor has it or not.
    pub fn named(name: &str) -> Option<Isa> {
        ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// All that the operations are written for: [`Isa::available`] and [`Isa::narrow`].
    #[cfg(test)]
    pub(crate) fn every() -> impl Iterator<Item = Isa> {
        Isa::available().iter().copied().chain(Isa::narrow())
    }

    /// Those of [`Isa::available`] that differ for what has no 8-bit products, as attention.
    #[cfg(test)]
    pub(crate) fn without_products() -> impl Iterator<Item = Isa> {
        Isa::available().iter().copied().filter(|isa| isa.plain() == *isa)
    }

    /// The same instructions with the widest vectors: matrix products have no others.
    pub(crate) fn widest(self) -> Isa {
        if self == Isa::Avx2Narrow { Isa::Avx2 } else { self }
    }

    /// The same instructions without 8-bit products, which nothing but matrix products needs.
    pub(crate) fn plain(self) -> Isa {
        match self {
            Isa::Avx2Vnni => Isa::Avx2,
            Isa::Avx512Vnni => Isa::Avx512,
            Isa::NeonDotprod | Isa::NeonI8mm => Isa::Neon,
            isa => isa,
        }
    }

    /// Whether this processor has every instruction of the set.
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
            Isa::Avx2Vnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => {
                Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => {
                Isa::NeonDotprod.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// This set where the processor has it, else the best it has. A kernel dispatches on the
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
            Isa::Avx2Narrow => "avx2-128",
            Isa::Avx2 => "avx2",
            Isa::Avx2Vnni => "avx2-vnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Neon => "neon",
            Isa::NeonDotprod => "neon-dotprod",
            Isa::NeonI8mm => "neon-i8mm",
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
        for isa in ALL {
            assert!(isa.usable().is_available());
            assert_eq!(Isa::named(isa.name()), Some(isa));
        }
        assert_eq!(Isa::named("AVX2"), None);
        for isa in Isa::every() {
            assert_eq!(isa.usable(), isa);
        }
        assert!(!Isa::available().contains(&Isa::Avx2Narrow));
    }
}
