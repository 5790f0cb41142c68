//! The publisher's time has not come.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, Publisher, TrustPolicy};

#[test]
fn a_pack_of_a_publisher_whose_time_has_not_come_is_refused_to_the_last_second() {
    let pack = good_pack();
    let start = "2027-01-01T00:00:00Z".parse().unwrap();
    let publisher = Publisher { not_before: Some(start), ..pack.publisher("test") };
    let policy = TrustPolicy::new(vec![publisher], 1).unwrap();
    let before = Clock::Fixed("2026-12-31T23:59:59Z".parse().unwrap());
    assert_eq!(refused_by(&pack, &policy, before), ["publisher_not_yet_valid"]);
    assert!(pack.read().unwrap().verify_at(&policy, None, start).is_ok());
}
