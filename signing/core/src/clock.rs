//! What time it is, and whether anyone knows.

use ruvllm_manifest::Timestamp;
use std::time::SystemTime;

/// When this crate was released, 2026-11-01T00:00:00Z in seconds since 1970. A clock that shows an
/// earlier time is wrong: it was never set, or somebody set it back.
const RELEASED: i64 = 1_793_491_200;

/// Where the time comes from that validity is held against.
///
/// A device without a battery starts in 1970, and who controls the clock could bring an expired key
/// back. So a system clock that shows a time before this crate's release counts as no clock, and
/// without a clock a publisher with validity bounds does not count, unless the policy says
/// `without_clock = "accept"`. Publishers without bounds count with and without a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Clock {
    /// The host's clock, where it shows a time after the release of this crate.
    #[default]
    System,
    /// This instant, which the caller vouches for.
    Fixed(Timestamp),
    /// There is no clock to trust.
    None,
}

impl Clock {
    /// The time; `None` where there is no trustworthy clock.
    pub fn now(self) -> Option<Timestamp> {
        match self {
            Clock::System => plausible(SystemTime::now().into()),
            Clock::Fixed(time) => Some(time),
            Clock::None => None,
        }
    }
}

fn plausible(time: Timestamp) -> Option<Timestamp> {
    (time.unix() >= RELEASED).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_clock_before_the_release_is_no_clock() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(time("2026-11-01T00:00:00Z").unix(), RELEASED);
        assert_eq!(plausible(time("1970-01-01T00:00:10Z")), None);
        assert_eq!(plausible(time("2026-10-31T23:59:59Z")), None);
        assert!(plausible(time("2026-11-01T00:00:00Z")).is_some());
        assert_eq!(Clock::None.now(), None);
        // An instant that the caller names is the caller's business.
        let past = time("2000-01-01T00:00:00Z");
        assert_eq!(Clock::Fixed(past).now(), Some(past));
    }
}
