//! The life of a generation: staged, tried, active, drained, gone back to.
//!
//! *Staging* compiles and proves a pack beside the running ones, on few threads of a low priority, and
//! lets it compute calls of the shapes that this host has seen. *Activating* is one store of a
//! pointer, which no reader waits for; publishers take turns, also while one prepares weights, which
//! readers of the book do not wait for either. A step of generation pins one snapshot, so it runs wholly on one generation, and the
//! old one drains by reference count; instances are made before that store and dropped after the
//! draining, beside the steps ([`prewarm`]). *Going back* publishes the packs of an earlier generation under
//! a new number and compiles nothing, because their code was kept. On *trial*, a share of the steps
//! pins the candidate and the others the active generation.
//!
//! Invariants: numbers of generations only grow; what is published was admitted; a snapshot is
//! published and its generation noted under one lock, so that the notes and the pointer agree; a
//! barred pack is published by nobody until it is cleared.
//!
//! Readers share [`published::Published`] with publishers through `arc-swap`, and counters are relaxed
//! atomics of their own; nothing here is a lock-free protocol that would have to be model-checked.

pub(crate) mod activation;
pub(crate) mod book;
pub(crate) mod host;
mod prewarm;
pub(crate) mod published;
mod stage;
mod staging_pool;
