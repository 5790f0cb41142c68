//! How keys and values are stored, as data: codecs, tiers by age, and their text form.
//!
//! The newest tokens of a sequence matter most and change least in number, so they stay exact, and
//! older ones are stored in fewer bits. A policy names, for keys and for values apart, which
//! codec holds the newest tokens, which the next, and which all others. Keys have channels that are
//! large for every token, values have not; so keys may be grouped by channel, after KIVI (Liu et
//! al., arXiv 2402.02750), and both may be rotated by a Hadamard transform, which spreads what is
//! large over a head (Ashkboos et al., arXiv 2404.00456).

use std::fmt;
use std::str::FromStr;

use ruvllm_abi::DType;
use ruvllm_native::attention::KvLayout;

use crate::config::ModelConfig;
use crate::error::EngineError;

/// How a block stores keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvCodec {
    /// IEEE binary32: twice the memory of f16, for comparison with exact results.
    F32,
    /// IEEE binary16.
    F16,
    /// 8-bit blocks of 32 along the elements of a token.
    Q8_0,
    /// 8-bit blocks of 32 tokens of one channel.
    Q8_0Channels,
    /// 4-bit blocks of 32 along the elements of a token.
    Q4_0,
    /// 4-bit blocks of 32 tokens of one channel.
    Q4_0Channels,
}

impl KvCodec {
    /// All codecs, from exact to small, in the order of their declaration.
    pub const ALL: [KvCodec; 6] = [
        KvCodec::F32,
        KvCodec::F16,
        KvCodec::Q8_0,
        KvCodec::Q8_0Channels,
        KvCodec::Q4_0,
        KvCodec::Q4_0Channels,
    ];

    /// The element type of stored numbers.
    pub const fn dtype(self) -> DType {
        match self {
            KvCodec::F32 => DType::F32,
            KvCodec::F16 => DType::F16,
            KvCodec::Q8_0 | KvCodec::Q8_0Channels => DType::Q8_0,
            KvCodec::Q4_0 | KvCodec::Q4_0Channels => DType::Q4_0,
        }
    }

    /// Its number in stored sessions; never given to another codec.
    pub const fn id(self) -> u8 {
        match self {
            KvCodec::F32 => 0,
            KvCodec::F16 => 1,
            KvCodec::Q8_0 => 2,
            KvCodec::Q4_0 => 3,
            KvCodec::Q8_0Channels => 4,
            KvCodec::Q4_0Channels => 5,
        }
    }

    /// The codec of that number.
    pub fn from_id(id: u8) -> Option<KvCodec> {
        KvCodec::ALL.into_iter().find(|codec| codec.id() == id)
    }

    /// Its name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            KvCodec::F32 => "f32",
            KvCodec::F16 => "f16",
            KvCodec::Q8_0 => "q8_0",
            KvCodec::Q8_0Channels => "q8_0c",
            KvCodec::Q4_0 => "q4_0",
            KvCodec::Q4_0Channels => "q4_0c",
        }
    }

    /// Whether kernels pack and unpack it.
    pub const fn is_quantized(self) -> bool {
        self.dtype().is_quantized()
    }

    /// Whether numbers are grouped by channel, so that only whole blocks of tokens can be stored.
    pub const fn by_channel(self) -> bool {
        matches!(self, KvCodec::Q8_0Channels | KvCodec::Q4_0Channels)
    }

    /// How attention finds its numbers.
    pub(crate) const fn layout(self) -> KvLayout {
        if self.by_channel() { KvLayout::Channels } else { KvLayout::Tokens }
    }

    /// Bits of a stored number, scales included.
    pub fn bits(self) -> f64 {
        let layout = self.dtype().layout();
        8.0 * layout.bytes as f64 / layout.elems as f64
    }
}

impl fmt::Display for KvCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Codecs by age: the first holds the newest tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvTiers {
    /// Codecs with the number of tokens that each holds.
    newest: Vec<(KvCodec, usize)>,
    /// The codec of all older tokens.
    rest: KvCodec,
}

impl KvTiers {
    /// One codec for all tokens.
    pub fn uniform(codec: KvCodec) -> KvTiers {
        KvTiers { newest: Vec::new(), rest: codec }
    }

    /// Codecs of the newest tokens, each with their number, and that of all others.
    pub fn new(newest: &[(KvCodec, usize)], rest: KvCodec) -> KvTiers {
        KvTiers { newest: newest.to_vec(), rest }
    }

    /// The codec of a token that `age` tokens follow.
    pub fn at(&self, age: usize) -> KvCodec {
        let mut end = 0;
        for &(codec, tokens) in &self.newest {
            end += tokens;
            if age < end {
                return codec;
            }
        }
        self.rest
    }

    /// The codec of the oldest tokens, which is also what pressure on memory makes of others.
    pub fn oldest(&self) -> KvCodec {
        self.rest
    }

    /// How many tokens follow one that has the codec of the oldest, at least.
    pub(super) fn young(&self) -> usize {
        self.newest.iter().map(|(_, tokens)| tokens).sum()
    }

    /// The codec in which single tokens are appended: that of the newest, or f16 where it stores
    /// whole blocks only.
    pub(crate) fn appended(&self) -> KvCodec {
        let codec = self.at(0);
        if codec.by_channel() { KvCodec::F16 } else { codec }
    }

    pub(super) fn codecs(&self) -> impl Iterator<Item = KvCodec> {
        self.newest.iter().map(|&(codec, _)| codec).chain([self.rest])
    }

    /// Every codec that blocks are stored in, those that are begun among them.
    pub(super) fn stored(&self) -> impl Iterator<Item = KvCodec> {
        self.codecs().chain([self.appended()])
    }

    /// Bits of a number, on average over a sequence of `tokens` tokens.
    fn bits(&self, tokens: usize) -> f64 {
        let mut left = tokens;
        let mut sum = 0.0;
        for &(codec, held) in &self.newest {
            sum += codec.bits() * held.min(left) as f64;
            left -= held.min(left);
        }
        (sum + self.rest.bits() * left as f64) / tokens.max(1) as f64
    }
}

impl fmt::Display for KvTiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (codec, tokens) in &self.newest {
            write!(f, "{codec}:{tokens}+")?;
        }
        write!(f, "{}", self.rest)
    }
}

/// How keys and values are stored.
///
/// Its text form is a codec (`q8_0`); or tiers, newest first, each but the last with the number of
/// tokens that it holds (`f16:256+q8_0:256+q4_0`); or tiers for keys and values apart
/// (`k=f16:256+q4_0c,v=f16:256+q4_0`); each optionally followed by `,rotate`. `mix` stands for
/// [`KvPolicy::mix`].
///
/// ```
/// use ruvllm_engine::{KvCodec, KvPolicy};
///
/// let small = KvPolicy::uniform(KvCodec::Q8_0);
/// let tiers: KvPolicy = "f16:256+q8_0:256+q4_0,rotate".parse().expect("a policy");
/// assert!(tiers.bits_per_value(4096) < small.bits_per_value(4096));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvPolicy {
    /// The tiers of keys.
    pub keys: KvTiers,
    /// The tiers of values.
    pub values: KvTiers,
    /// Whether keys, values and queries are rotated by a Hadamard transform before they are stored.
    pub rotate: bool,
}

impl KvPolicy {
    /// One codec for everything.
    pub fn uniform(codec: KvCodec) -> KvPolicy {
        let values = if codec.by_channel() {
            KvCodec::ALL.into_iter().find(|c| c.dtype() == codec.dtype()).unwrap_or(codec)
        } else {
            codec
        };
        KvPolicy { keys: KvTiers::uniform(codec), values: KvTiers::uniform(values), rotate: false }
    }

    /// The newest 256 tokens exact, the next 256 in 8 bits, all others in 4, keys by channel; rotated, which
    /// changes little for keys by channel and helps values.
    pub fn mix() -> KvPolicy {
        let newest = [(KvCodec::F16, 256), (KvCodec::Q8_0, 256)];
        KvPolicy {
            keys: KvTiers::new(&newest, KvCodec::Q4_0Channels),
            values: KvTiers::new(&newest, KvCodec::Q4_0),
            rotate: true,
        }
    }

    /// Whether blocks change their codec as they age, or once they are full.
    pub(crate) fn migrates(&self) -> bool {
        let moves = |tiers: &KvTiers| !tiers.newest.is_empty() || tiers.rest.by_channel();
        moves(&self.keys) || moves(&self.values)
    }

    /// Whether pressure on memory may quantise blocks before their time.
    pub(crate) fn has_smaller(&self) -> bool {
        !self.keys.newest.is_empty() || !self.values.newest.is_empty()
    }

    /// The element types that kernels must pack and unpack.
    pub(crate) fn packed(&self) -> impl Iterator<Item = DType> {
        let codecs = self.keys.codecs().chain(self.values.codecs());
        codecs.map(KvCodec::dtype).filter(|dtype| dtype.is_quantized())
    }

    /// Bits of a stored number, on average over a full sequence of `tokens` tokens whose tiers end where the
    /// policy says; in memory they end with a block.
    pub fn bits_per_value(&self, tokens: usize) -> f64 {
        (self.keys.bits(tokens) + self.values.bits(tokens)) / 2.0
    }

    /// Checks that a model's heads and blocks of `block` tokens fit the codecs.
    ///
    /// # Errors
    /// [`EngineError::KvHeadDim`] where a head is not whole blocks of a codec;
    /// [`EngineError::InvalidOption`] where a block has too few tokens for a codec by channel, values
    /// are to be grouped by channel, or heads of an odd size are to be rotated.
    pub fn check(&self, config: &ModelConfig, block: usize) -> Result<(), EngineError> {
        let invalid = |option, value: String, reason| {
            Err(EngineError::InvalidOption { option, value, reason })
        };
        if !block.is_power_of_two() || !(16..=256).contains(&block) {
            let reason = "tokens of a KV block must be a power of two from 16 to 256; 16 or 32 serve most models";
            return invalid("kv_block", block.to_string(), reason);
        }
        for codec in self.keys.codecs().chain(self.values.codecs()) {
            let elems = codec.dtype().layout().elems;
            if codec.by_channel() && !block.is_multiple_of(elems) {
                let reason = "codecs by channel group 32 tokens: use blocks of 32";
                return invalid("kv_block", block.to_string(), reason);
            }
            if !codec.by_channel() && !config.head_dim.is_multiple_of(elems) {
                let (codec, head_dim) = (codec.dtype(), config.head_dim);
                return Err(EngineError::KvHeadDim { codec, head_dim });
            }
        }
        if self.values.codecs().any(KvCodec::by_channel) {
            let reason = "only keys have outlying channels; store values by token (q8_0, q4_0)";
            return invalid("kv", self.to_string(), reason);
        }
        if self.rotate && !config.head_dim.is_multiple_of(2) {
            let reason =
                "heads of this model have an odd size, which a Hadamard transform cannot halve";
            return invalid("kv", self.to_string(), reason);
        }
        Ok(())
    }
}

impl Default for KvPolicy {
    /// Everything in f16.
    fn default() -> Self {
        KvPolicy::uniform(KvCodec::F16)
    }
}

impl From<KvCodec> for KvPolicy {
    fn from(codec: KvCodec) -> Self {
        KvPolicy::uniform(codec)
    }
}

impl fmt::Display for KvPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == KvPolicy::mix() {
            return f.write_str("mix");
        }
        if self.keys == self.values {
            write!(f, "{}", self.keys)?;
        } else {
            write!(f, "k={},v={}", self.keys, self.values)?;
        }
        if self.rotate { f.write_str(",rotate") } else { Ok(()) }
    }
}

/// The text is no policy of KV storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown KV codec or malformed tiers `{part}`; codecs are f32, f16, q8_0, q4_0 and, for keys, q8_0c and q4_0c; tiers are newest first with their tokens, as in f16:256+q8_0:256+q4_0; keys and values apart as in k=f16:256+q4_0c,v=q8_0; or mix; `,rotate` may follow"
)]
pub struct InvalidKvPolicy {
    /// The part that is not understood.
    pub part: String,
}

impl InvalidKvPolicy {
    fn new(part: &str) -> InvalidKvPolicy {
        InvalidKvPolicy { part: part.to_owned() }
    }
}

impl FromStr for KvCodec {
    type Err = InvalidKvPolicy;

    fn from_str(s: &str) -> Result<KvCodec, InvalidKvPolicy> {
        let named = KvCodec::ALL.into_iter().find(|codec| codec.name() == s);
        named.ok_or_else(|| InvalidKvPolicy::new(s))
    }
}

impl FromStr for KvTiers {
    type Err = InvalidKvPolicy;

    fn from_str(s: &str) -> Result<KvTiers, InvalidKvPolicy> {
        let (newest, rest) = match s.rsplit_once('+') {
            Some((newest, rest)) => (Some(newest), rest),
            None => (None, s),
        };
        let tier = |part: &str| {
            let (codec, tokens) = part.split_once(':').ok_or_else(|| InvalidKvPolicy::new(part))?;
            let tokens = tokens.parse().ok().filter(|&tokens: &usize| tokens > 0);
            Ok((codec.parse()?, tokens.ok_or_else(|| InvalidKvPolicy::new(part))?))
        };
        let newest = newest.into_iter().flat_map(|newest| newest.split('+')).map(tier);
        Ok(KvTiers { newest: newest.collect::<Result<_, _>>()?, rest: rest.parse()? })
    }
}

impl FromStr for KvPolicy {
    type Err = InvalidKvPolicy;

    fn from_str(s: &str) -> Result<KvPolicy, InvalidKvPolicy> {
        let (sides, rotate) = match s.strip_suffix(",rotate") {
            Some(sides) => (sides, true),
            None => (s, false),
        };
        let policy = if sides == "mix" {
            KvPolicy::mix()
        } else if let Some(keys) = sides.strip_prefix("k=") {
            let (keys, values) =
                keys.split_once(",v=").ok_or_else(|| InvalidKvPolicy::new(sides))?;
            KvPolicy { keys: keys.parse()?, values: values.parse()?, rotate: false }
        } else if let Ok(codec) = sides.parse::<KvCodec>() {
            KvPolicy::uniform(codec)
        } else {
            let tiers: KvTiers = sides.parse()?;
            KvPolicy { keys: tiers.clone(), values: tiers, rotate: false }
        };
        Ok(KvPolicy { rotate: rotate || policy.rotate, ..policy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in [
            "f16",
            "f32",
            "q8_0,rotate",
            "f16:256+q8_0:256+q4_0",
            "k=f16:256+q4_0c,v=f16:32+q8_0",
            "k=q8_0c,v=q8_0",
            "mix",
        ] {
            assert_eq!(text.parse::<KvPolicy>().unwrap().to_string(), text);
        }
        assert_eq!("mix".parse::<KvPolicy>().unwrap(), KvPolicy::mix());
        assert_eq!("q4_0c".parse::<KvPolicy>().unwrap().to_string(), "k=q4_0c,v=q4_0");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, part) in [
            ("q3", "q3"),
            ("f16+q4_0", "f16"),
            ("f16:0+q4_0", "f16:0"),
            ("k=f16", "k=f16"),
            ("f16:x+q4_0", "f16:x"),
            ("", ""),
        ] {
            assert_eq!(text.parse::<KvPolicy>().unwrap_err().part, part, "{text}");
        }
    }

    #[test]
    fn tiers_go_by_age() {
        let tiers: KvTiers = "f16:32+q8_0:64+q4_0".parse().unwrap();
        let at = [0, 31, 32, 95, 96, 10_000].map(|age| tiers.at(age).name());
        assert_eq!(at, ["f16", "f16", "q8_0", "q8_0", "q4_0", "q4_0"]);
    }

    #[test]
    fn the_mix_takes_less_than_five_and_a_half_bits_at_4096_tokens() {
        let bits = KvPolicy::mix().bits_per_value(4096);
        assert!((bits - 5.46875).abs() < 1e-9, "{bits}");
        assert_eq!(KvPolicy::default().bits_per_value(100), 16.0);
    }
}
