//! The host's clock is missing or was set back, so that an expired key would count again.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, Publisher, TrustPolicy};

#[test]
fn without_a_clock_a_publisher_with_bounds_does_not_count() {
    let pack = good_pack();
    let until = Some("2027-01-01T00:00:00Z".parse().unwrap());
    let from = Some("2020-01-01T00:00:00Z".parse().unwrap());
    let bounded = [
        Publisher { not_after: until, ..pack.publisher("test") },
        Publisher { not_before: from, ..pack.publisher("test") },
    ];
    for publisher in bounded {
        let policy = TrustPolicy::new(vec![publisher], 1).unwrap();
        assert_eq!(refused_by(&pack, &policy, Clock::None), ["clock_unknown"]);
        let accepting = policy.with_accepts_without_clock(true);
        assert!(pack.read().unwrap().verify_with(&accepting, None, Clock::None).is_ok());
    }
    // Without bounds there is nothing that a clock could say.
    assert!(pack.read().unwrap().verify_with(&pack.policy(), None, Clock::None).is_ok());
}

#[test]
fn a_revoked_key_stays_revoked_without_a_clock() {
    let pack = good_pack();
    let policy = pack.policy().with_revoked([pack.key().public_key()]);
    let policy = policy.with_accepts_without_clock(true);
    assert_eq!(refused_by(&pack, &policy, Clock::None), ["key_revoked"]);
}
