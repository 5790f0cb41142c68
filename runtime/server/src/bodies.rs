//! Bodies of requests: how much of them is in memory together, and how long one may take to come in.
//!
//! A byte counts from when it was read until the request's fields are let go of, so a client that announces
//! much and sends little takes nothing from others. So do the values that JSON becomes. What does not fit is refused at once: if it waited, it
//! would hold what was read of it meanwhile. A client that sends slowly, or stops in the middle, is refused
//! after a while, so that it cannot keep others out for as long as a request may last. Each listener
//! counts its own, so that clients are never in an administrator's way.
//!
//! Not protected against: clients with keys that together send as much as fits, and faster than [`PACE`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// Time for a body to come in, however short it is.
const GRACE: Duration = Duration::from_secs(15);
/// Bytes for which there is another second.
const PACE: usize = 64 << 10;

/// Bytes of a body, which count until this is dropped.
pub(crate) type Held = OwnedSemaphorePermit;

/// The bodies of one listener's requests.
pub(crate) struct Bodies {
    /// A permit for each byte that may still be read.
    free: Arc<Semaphore>,
    all: usize,
    grace: Duration,
}

impl Bodies {
    /// Of so many bytes together.
    pub(crate) fn new(bytes: usize) -> Bodies {
        let all = bytes.min(Semaphore::MAX_PERMITS);
        Bodies { free: Arc::new(Semaphore::new(all)), all, grace: GRACE }
    }

    /// Reads a body of at most `limit` bytes.
    pub(crate) async fn read(&self, body: Body, limit: usize) -> Result<(Vec<u8>, Held), ApiError> {
        let begun = Instant::now();
        let mut chunks = body.into_data_stream();
        let (mut bytes, mut held) = (Vec::new(), self.hold(0)?);
        loop {
            let time = self.grace + Duration::from_secs_f64(bytes.len() as f64 / PACE as f64);
            let left = time.saturating_sub(begun.elapsed());
            let chunk = tokio::time::timeout(left, chunks.next()).await;
            let Some(chunk) = chunk.map_err(|_| ApiError::slow_body())? else { break };
            let unreadable =
                |error: axum::Error| ApiError::bad_request("unreadable_body", error.to_string());
            let chunk = chunk.map_err(unreadable)?;
            if chunk.len() > limit - bytes.len() {
                return Err(ApiError::too_large(limit));
            }
            held.merge(self.hold(chunk.len())?);
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes, held))
    }

    /// Counts what becomes of a body beside its bytes.
    pub(crate) fn hold_more(&self, held: &mut Held, bytes: usize) -> Result<(), ApiError> {
        if bytes.saturating_add(held.num_permits()) > self.all {
            return Err(ApiError::too_many_values(self.all));
        }
        held.merge(self.hold(bytes)?);
        Ok(())
    }

    fn hold(&self, bytes: usize) -> Result<Held, ApiError> {
        let permits = u32::try_from(bytes).map_err(|_| ApiError::bodies_full())?;
        Arc::clone(&self.free).try_acquire_many_owned(permits).map_err(|_| ApiError::bodies_full())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    /// A body of these pieces, with a time before each.
    fn body(pieces: &'static [(u64, &'static str)]) -> Body {
        let pieces = stream::iter(pieces).then(|&(milliseconds, piece)| async move {
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            Ok::<_, Infallible>(piece)
        });
        Body::from_stream(pieces)
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn bytes_count_from_their_reading_until_they_are_let_go_of() {
        run(async {
            let bodies = Bodies::new(10);
            let read = |pieces| bodies.read(body(pieces), 8);
            let (bytes, held) = read(&[(0, "abc"), (0, "def")]).await.unwrap();
            assert_eq!((bytes.as_slice(), bodies.free.available_permits()), (&b"abcdef"[..], 4));
            let (_, also) = read(&[(0, "1234")]).await.unwrap();
            assert_eq!(read(&[(0, "5")]).await.unwrap_err().code(), "bodies_full");
            // Who sends nothing needs no room.
            assert_eq!(read(&[]).await.unwrap().0, b"");
            drop((held, also));
            // What was refused in the middle counts no longer, either.
            assert_eq!(
                read(&[(0, "12345678"), (0, "9")]).await.unwrap_err().code(),
                "request_too_large"
            );
            assert_eq!(bodies.free.available_permits(), 10);
        });
    }

    #[test]
    fn a_body_that_stops_or_drips_is_refused_and_gives_its_room_back() {
        run(async {
            let bodies = Bodies { grace: Duration::from_millis(100), ..Bodies::new(10) };
            for slow in [&[(0, "a"), (60_000, "b")][..], &[(60, "a"); 9]] {
                let begun = Instant::now();
                let error = bodies.read(body(slow), 10).await.unwrap_err();
                assert_eq!(error.code(), "slow_body");
                assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
                assert_eq!(bodies.free.available_permits(), 10);
            }
        });
    }

    #[test]
    fn a_long_body_has_longer() {
        static LONG: [u8; 4 * PACE] = [b'x'; 4 * PACE];
        run(async {
            let bodies = Bodies { grace: Duration::from_millis(100), ..Bodies::new(8 * PACE) };
            let pieces = stream::iter([0, 300]).then(|milliseconds| async move {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                Ok::<_, Infallible>(&LONG[..])
            });
            let read = bodies.read(Body::from_stream(pieces), 8 * PACE).await;
            assert_eq!(read.unwrap().0.len(), 8 * PACE);
        });
    }
}
