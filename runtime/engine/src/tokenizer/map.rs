//! Maps.

use std::collections::HashMap;

/// A map for keys that come from files and texts: fast, and keyed at random, so that nobody can choose keys
/// that collide.
pub(super) type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
