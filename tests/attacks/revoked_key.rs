//! A key that was revoked signs, or has signed before.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, TrustPolicy, sign_manifest};

#[test]
fn a_revoked_key_does_not_count_whatever_else_the_policy_says() {
    let pack = good_pack();
    let policy = pack.policy().with_revoked([pack.key().public_key()]);
    assert_eq!(refused_by(&pack, &policy, Clock::System), ["key_revoked"]);
    // Before the revocation, by a clock that is set back: revocation knows no time.
    let early = Clock::Fixed("2000-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(refused_by(&pack, &policy, early), ["key_revoked"]);
}

#[test]
fn a_revoked_key_does_not_help_to_reach_a_threshold_and_does_no_harm_beside_others() {
    let (pack, other) = (good_pack(), good_pack());
    let bytes = pack.bytes("kernels.json");
    let envelope = sign_manifest(&bytes, &[pack.key(), other.key()]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let policy = |threshold| {
        TrustPolicy::new(vec![pack.publisher("a"), other.publisher("b")], threshold)
            .unwrap()
            .with_revoked([other.key().public_key()])
    };
    let found = refused_by(&pack, &policy(2), Clock::System);
    assert_eq!(found, ["key_revoked", "threshold_not_met"]);
    let verified = pack.read().unwrap().verify(&policy(1), None).unwrap();
    assert_eq!(verified.publishers().len(), 1);
}
