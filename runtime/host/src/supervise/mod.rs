//! Keeping watch over a live server's kernels: what is active is kept on disk and in a history, and what
//! does harm is taken back.
//!
//! [`supervisor`] does what [`crate::swap`] offers and books it, with `supervisor_watch` and `supervisor_publish`,
//! which hold its methods that judge and that publish; [`comparison`] reads figures of two
//! generations and [`health`] judges them; [`delivery`] stages what appears in a directory.

#[cfg(feature = "supervisor")]
pub(crate) mod acceptance;
pub(crate) mod comparison;
#[cfg(feature = "supervisor")]
pub(crate) mod delivery;
pub(crate) mod health;
#[cfg(feature = "supervisor")]
pub(crate) mod history;
mod paired;
#[cfg(feature = "supervisor")]
mod spans;
#[cfg(feature = "supervisor")]
mod store;
#[cfg(feature = "supervisor")]
pub(crate) mod supervisor;
#[cfg(feature = "supervisor")]
mod supervisor_publish;
#[cfg(feature = "supervisor")]
pub(crate) mod supervisor_watch;
#[cfg(feature = "supervisor")]
pub(crate) mod watched;
