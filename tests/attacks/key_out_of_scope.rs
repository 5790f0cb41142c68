//! A trusted publisher signs a pack of a name that it is not trusted for.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, Publisher, TrustPolicy};

#[test]
fn a_signature_outside_of_its_scope_does_not_count() {
    let pack = good_pack();
    for packs in [&["acme-*"][..], &[], &["test", "test-kernels-*"], &["*-test", "est-kernels"]] {
        let packs = packs.iter().map(|p| p.parse().unwrap()).collect();
        let publisher = Publisher { packs, ..pack.publisher("test") };
        let policy = TrustPolicy::new(vec![publisher], 1).unwrap();
        assert_eq!(refused_by(&pack, &policy, Clock::System), ["publisher_out_of_scope"]);
    }
}

#[test]
fn it_does_not_help_to_reach_a_threshold() {
    let (pack, other) = (good_pack(), good_pack());
    let bytes = pack.bytes("kernels.json");
    let envelope = ruvllm_signing::sign_manifest(&bytes, &[pack.key(), other.key()]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let narrow = Publisher { packs: vec!["acme-*".parse().unwrap()], ..other.publisher("other") };
    let policy = TrustPolicy::new(vec![pack.publisher("test"), narrow], 2).unwrap();
    let found = refused_by(&pack, &policy, Clock::System);
    assert_eq!(found, ["publisher_out_of_scope", "threshold_not_met"]);
}
