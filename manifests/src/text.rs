//! Names, paths and hashes: text with a rule, checked once.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The name of a pack: 1 to 64 of `[a-z0-9._-]`, beginning with a letter or a digit.
///
/// Lower case only, so that it can be a file name on any system.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct PackName(String);

/// A pack name breaks its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("use 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit")]
pub struct InvalidPackName;

impl PackName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PackName {
    type Err = InvalidPackName;

    fn from_str(s: &str) -> Result<Self, InvalidPackName> {
        let ok = (1..=64).contains(&s.len())
            && s.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
            && s.as_bytes()[0].is_ascii_alphanumeric()
            && !s.ends_with('.');
        if ok { Ok(PackName(s.to_owned())) } else { Err(InvalidPackName) }
    }
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path of a file within a pack: relative, `/`-separated, the same file on every system.
///
/// Components are of `[A-Za-z0-9._-]`, do not begin or end with a dot and are no device name of
/// Windows; so there is no `..`, no drive, no stream, no hidden file, and no two spellings that a
/// file system could fold into one except by case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct PackPath(String);

/// A path breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidPath {
    /// It is absolute or has a `..`, and could name a file outside of the pack.
    #[error("the path could leave the pack: use a relative path without '..'")]
    Escapes,
    /// It has another form that is not portable.
    #[error(
        "write the path as '/'-separated components of A-Z, a-z, 0-9, '.', '_' and '-' that neither \
         begin nor end with '.', at most {MAX_DEPTH} of them and {MAX_PATH} bytes in all"
    )]
    Form,
}

const MAX_DEPTH: usize = 8;
const MAX_PATH: usize = 255;

impl PackPath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as a file system that ignores case sees it.
    pub fn folded(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

impl FromStr for PackPath {
    type Err = InvalidPath;

    fn from_str(s: &str) -> Result<Self, InvalidPath> {
        let windows_drive = s.as_bytes().get(1) == Some(&b':');
        if s.starts_with(['/', '\\'])
            || windows_drive
            || s.split(['/', '\\']).any(|component| component == "..")
        {
            return Err(InvalidPath::Escapes);
        }
        let component_ok = |c: &str| {
            !c.is_empty()
                && c.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
                && !c.starts_with('.')
                && !c.ends_with('.')
                && !is_device_name(c)
        };
        if s.len() > MAX_PATH || s.split('/').count() > MAX_DEPTH || !s.split('/').all(component_ok)
        {
            return Err(InvalidPath::Form);
        }
        Ok(PackPath(s.to_owned()))
    }
}

impl fmt::Display for PackPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether Windows takes the component for a device, whatever its extension.
fn is_device_name(component: &str) -> bool {
    let stem = component.split('.').next().unwrap_or(component).to_ascii_lowercase();
    match stem.as_str() {
        "con" | "prn" | "aux" | "nul" => true,
        _ => {
            stem.len() == 4
                && (stem.starts_with("com") || stem.starts_with("lpt"))
                && stem.as_bytes()[3].is_ascii_digit()
        }
    }
}

/// A SHA-256 digest, written `sha256:<64 lower-case hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256Hex([u8; 32]);

/// The text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write the hash as 'sha256:' and 64 lower-case hex digits")]
pub struct InvalidSha256;

impl Sha256Hex {
    /// Wraps a digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hex digits without the prefix.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl FromStr for Sha256Hex {
    type Err = InvalidSha256;

    fn from_str(s: &str) -> Result<Self, InvalidSha256> {
        let digits = s.strip_prefix("sha256:").ok_or(InvalidSha256)?.as_bytes();
        if digits.len() != 64 {
            return Err(InvalidSha256);
        }
        let nibble = |b: u8| match b {
            b'0'..=b'9' => Ok(b - b'0'),
            b'a'..=b'f' => Ok(b - b'a' + 10),
            _ => Err(InvalidSha256),
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Sha256Hex {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_the_pack_are_told_apart_from_ugly_ones() {
        for escape in ["/etc/passwd", "../x", "a/../b", "a\\..\\b", "C:\\x", "\\\\host\\x", ".."] {
            assert_eq!(escape.parse::<PackPath>(), Err(InvalidPath::Escapes), "{escape}");
        }
        let deep = "a/".repeat(8) + "a";
        let long = "a".repeat(256);
        for form in [
            "",
            "a//b",
            "a/",
            "./a",
            "a/.",
            ".hidden",
            "a b",
            "a\\b",
            "a\n",
            "nul",
            "NUL.wasm",
            "com1.wasm",
            "x.",
            "ä",
            "a\0",
            &deep,
            &long,
        ] {
            assert_eq!(form.parse::<PackPath>(), Err(InvalidPath::Form), "{form}");
        }
        for good in ["rope/rope_f32.wasm", "A-b.c/d_e", "com10", "console"] {
            assert_eq!(good.parse::<PackPath>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn pack_names_are_lower_case_file_names() {
        for good in ["a", "ruvllm-core-kernels", "9x.y_z"] {
            assert_eq!(good.parse::<PackName>().unwrap().as_str(), good);
        }
        for bad in ["", "A", "-a", ".a", "a.", "a/b", "a b", &"a".repeat(65)] {
            assert!(bad.parse::<PackName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hashes_have_one_spelling() {
        let text = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(text.parse::<Sha256Hex>().unwrap().to_string(), text);
        assert!(text.to_uppercase().parse::<Sha256Hex>().is_err());
        assert!("sha256:0A".parse::<Sha256Hex>().is_err());
        assert!(format!("sha256:{}", "0A".repeat(32)).parse::<Sha256Hex>().is_err());
        assert!("0a".repeat(32).parse::<Sha256Hex>().is_err());
    }
}
