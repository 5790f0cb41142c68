//! `ruvllm kernels`: which kernels there are and why each is chosen, on this machine or on a live
//! server, and changing those of a live server.

mod args;
mod client;
mod graphs;
mod live;
mod local;
mod tables;
mod watch;

use super::{Ended, Failure};
use args::{KernelsAction, Place};
use client::Client;

pub(crate) use args::KernelsArgs;

pub(crate) fn main(args: &KernelsArgs) -> Result<Ended, Failure> {
    let remote = |place: &Place| -> Result<Option<Client>, Failure> {
        place.server.as_deref().map(|url| Client::new(url, &place.access)).transpose()
    };
    match &args.action {
        KernelsAction::List { place, json } => match remote(place)? {
            Some(client) => live::list(&client, *json)?,
            None => local::list(&place.kernels, *json)?,
        },
        KernelsAction::Explain { op, place, json } => match remote(place)? {
            Some(client) => live::explain(&client, op, *json)?,
            None => local::explain(&place.kernels, op, *json)?,
        },
        KernelsAction::Stage { pack, live } => live::stage(live, pack)?,
        KernelsAction::Activate { id, share, live } => live::activate(live, *id, *share)?,
        KernelsAction::Promote { live } => live::promote(live)?,
        KernelsAction::EndTrial { live } => live::end_trial(live)?,
        KernelsAction::Rollback { generation, live } => live::roll_back(live, *generation)?,
        KernelsAction::Discard { id, live } => live::discard(live, *id)?,
        KernelsAction::Clear { digest, live } => live::clear(live, digest)?,
        KernelsAction::History { limit, live } => live::history(live, *limit)?,
        KernelsAction::Watch { live } => return watch::main(live),
    }
    Ok(Ended::Done)
}
