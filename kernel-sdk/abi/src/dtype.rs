//! Element types and the block layouts behind them.
//!
//! The quantised formats are those of GGML, bit for bit, so that a tensor of a GGUF file and a
//! KV block of any pack mean the same thing everywhere. A block stores [`BlockLayout::elems`]
//! consecutive elements of a row in [`BlockLayout::bytes`] bytes; rows hold whole blocks.

use core::fmt;

/// The type of a tensor's elements.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of binary32.
    BF16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned byte.
    U8,
    /// 32 elements in 34 bytes: f16 scale `d`, then 32 `i8`. `x = d * q`.
    Q8_0,
    /// 32 elements in 18 bytes: f16 scale `d`, then 16 bytes; byte `j` holds element `j` in its low
    /// and element `j + 16` in its high nibble. `x = d * (q - 8)`.
    Q4_0,
    /// 32 elements in 20 bytes: f16 `d`, f16 `m`, nibbles as in `Q4_0`. `x = d * q + m`.
    Q4_1,
    /// 32 elements in 22 bytes: f16 `d`, 32 high bits, nibbles. `x = d * (q - 16)`.
    Q5_0,
    /// 32 elements in 24 bytes: f16 `d`, f16 `m`, 32 high bits, nibbles. `x = d * q + m`.
    Q5_1,
    /// 256 elements in 144 bytes: f16 `d`, f16 `dmin`, 12 bytes of 6-bit scales and mins, nibbles.
    Q4_K,
    /// 256 elements in 176 bytes: as `Q4_K` with 32 bytes of high bits before the nibbles.
    Q5_K,
    /// 256 elements in 210 bytes: low nibbles, high bit pairs, 16 `i8` scales, f16 `d`.
    Q6_K,
}

/// How many elements a block holds and how many bytes it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Elements of a block.
    pub elems: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 14] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::U32,
        DType::I32,
        DType::U8,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
    ];

    /// The block layout; plain types are blocks of one element.
    pub const fn layout(self) -> BlockLayout {
        let (elems, bytes) = match self {
            DType::F32 | DType::U32 | DType::I32 => (1, 4),
            DType::F16 | DType::BF16 => (1, 2),
            DType::U8 => (1, 1),
            DType::Q8_0 => (32, 34),
            DType::Q4_0 => (32, 18),
            DType::Q4_1 => (32, 20),
            DType::Q5_0 => (32, 22),
            DType::Q5_1 => (32, 24),
            DType::Q4_K => (256, 144),
            DType::Q5_K => (256, 176),
            DType::Q6_K => (256, 210),
        };
        BlockLayout { elems, bytes }
    }

    /// Bytes that `elems` consecutive elements of a row take, or `None` where they do not fill
    /// whole blocks or the size overflows.
    pub const fn bytes_for(self, elems: usize) -> Option<usize> {
        let layout = self.layout();
        if !elems.is_multiple_of(layout.elems) {
            return None;
        }
        (elems / layout.elems).checked_mul(layout.bytes)
    }

    /// Whether elements are stored as scaled blocks.
    pub const fn is_quantized(self) -> bool {
        self.layout().elems > 1
    }

    /// The name in manifests and messages, such as `q8_0`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Q8_0 => "q8_0",
            DType::Q4_0 => "q4_0",
            DType::Q4_1 => "q4_1",
            DType::Q5_0 => "q5_0",
            DType::Q5_1 => "q5_1",
            DType::Q4_K => "q4_k",
            DType::Q5_K => "q5_k",
            DType::Q6_K => "q6_k",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no element type of this ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDType;

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown dtype; known are")?;
        for (i, dtype) in DType::ALL.iter().enumerate() {
            write!(f, "{} {dtype}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownDType {}

impl core::str::FromStr for DType {
    type Err = UnknownDType;

    fn from_str(s: &str) -> Result<Self, UnknownDType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == s).ok_or(UnknownDType)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert_eq!("Q8_0".parse::<DType>(), Err(UnknownDType));
    }

    #[test]
    fn a_row_holds_whole_blocks() {
        assert_eq!(DType::Q8_0.bytes_for(64), Some(68));
        assert_eq!(DType::Q4_0.bytes_for(33), None);
        assert_eq!(DType::Q6_K.bytes_for(256), Some(210));
        assert_eq!(DType::F16.bytes_for(3), Some(6));
        assert_eq!(DType::F32.bytes_for(usize::MAX), None);
    }
}
