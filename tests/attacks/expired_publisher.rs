//! The publisher's time is over.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, Publisher, TrustPolicy};

#[test]
fn a_pack_of_an_expired_publisher_is_refused_from_the_first_second_on() {
    let pack = good_pack();
    let end = "2027-01-01T00:00:00Z".parse().unwrap();
    let publisher = Publisher { not_after: Some(end), ..pack.publisher("test") };
    let policy = TrustPolicy::new(vec![publisher], 1).unwrap();
    assert_eq!(refused_by(&pack, &policy, Clock::Fixed(end)), ["publisher_expired"]);
    let before = "2026-12-31T23:59:59Z".parse().unwrap();
    assert!(pack.read().unwrap().verify_at(&policy, None, before).is_ok());
}
