//! A call, from a worker down to the kernel that answers it and up again: [`worker`] asks the candidates
//! of a chain, [`native`] and [`sandboxed`] run one, [`check`] holds a sample of results against the
//! native twin.

pub(crate) mod check;
pub(crate) mod context;
pub(crate) mod native;
mod open;
pub(crate) mod profile;
pub(crate) mod sandboxed;
mod team_race;
pub(crate) mod team_worker;
pub(crate) mod worker;
