//! Helpers shared by the benches.
