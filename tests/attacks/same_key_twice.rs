//! One key signs as if it were two.

use crate::{good_pack, refused, refused_by};
use ruvllm_signing::{Clock, Envelope, Publisher, TrustPolicy};

#[test]
fn one_key_counts_once_whatever_it_calls_itself() {
    let (pack, other, third) = (good_pack(), good_pack(), good_pack());
    let bytes = pack.bytes("kernels.json");
    let signature = pack.key().sign(&bytes);
    let ids = [pack.key().public_key().key_id(), third.key().public_key().key_id()];
    let envelope = Envelope::from_signatures(ids.map(|id| (id, signature)).to_vec()).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let policy = TrustPolicy::new(vec![pack.publisher("a"), other.publisher("b")], 2).unwrap();
    let found = refused_by(&pack, &policy, Clock::System);
    assert_eq!(found, ["signature_repeated", "threshold_not_met"]);
}

#[test]
fn an_envelope_with_one_key_id_twice_is_refused() {
    let pack = good_pack();
    let id = pack.key().public_key().key_id();
    let signature = pack.key().sign(&pack.bytes("kernels.json"));
    let entry = format!(r#"{{"key_id":"{id}","signature":"{signature}"}}"#);
    let doubled = format!(r#"{{"version":1,"signatures":[{entry},{entry}]}}"#);
    pack.write("kernels.json.sig", doubled.as_bytes());
    assert_eq!(refused(&pack), ["envelope_duplicate_key"]);
}

#[test]
fn a_policy_that_gives_one_key_two_names_is_refused() {
    let pack = good_pack();
    let twins: Vec<Publisher> = ["a", "b"].map(|name| pack.publisher(name)).to_vec();
    assert_eq!(TrustPolicy::new(twins, 2).unwrap_err().code(), "policy_invalid");
}

#[test]
fn two_keys_of_one_publisher_are_one_publisher() {
    let (pack, other) = (good_pack(), good_pack());
    let bytes = pack.bytes("kernels.json");
    let envelope = ruvllm_signing::sign_manifest(&bytes, &[pack.key(), other.key()]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    let entries = vec![pack.publisher("a"), other.publisher("a"), good_pack().publisher("b")];
    let policy = TrustPolicy::new(entries, 2).unwrap();
    assert_eq!(refused_by(&pack, &policy, Clock::System), ["threshold_not_met"]);
}
