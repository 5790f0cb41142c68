//! In place of TOML, in a build without the feature `toml`.

use serde::{Serialize, de::DeserializeOwned};

const ABSENT: &str = "this program has no TOML, since it was built without the feature `toml`: \
                      turn it on, or make the value in code";

pub(crate) fn read<T: DeserializeOwned>(_: &str) -> Result<T, String> {
    Err(ABSENT.to_owned())
}

pub(crate) fn write<T: Serialize>(_: &T) -> Result<String, String> {
    Err(ABSENT.to_owned())
}
