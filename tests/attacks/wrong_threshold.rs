//! Fewer publishers have signed than must, or a policy asks for none.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, TrustPolicy, sign_manifest};

#[test]
fn n_of_m_counts_publishers_that_are_trusted() {
    let [a, b, c, stranger] = [good_pack(), good_pack(), good_pack(), good_pack()];
    let publishers = vec![a.publisher("a"), b.publisher("b"), c.publisher("c")];
    let policy = |threshold| TrustPolicy::new(publishers.clone(), threshold);
    let sign = |keys: &[&ruvllm_tests::TestPack]| {
        let keys: Vec<_> = keys.iter().map(|pack| pack.key()).collect();
        let envelope = sign_manifest(&a.bytes("kernels.json"), &keys).unwrap();
        a.write("kernels.json.sig", envelope.to_json().as_bytes());
    };
    let refused = |threshold| refused_by(&a, &policy(threshold).unwrap(), Clock::System);
    sign(&[&a]);
    assert_eq!(refused(2), ["threshold_not_met"]);
    sign(&[&a, &stranger]);
    assert_eq!(refused(2), ["signature_unknown_key", "threshold_not_met"]);
    sign(&[&a, &b]);
    assert_eq!(refused(3), ["threshold_not_met"]);
    assert!(a.read().unwrap().verify(&policy(2).unwrap(), None).is_ok());
    for threshold in [0, 4, usize::MAX] {
        assert_eq!(policy(threshold).unwrap_err().code(), "policy_invalid");
    }
    assert_eq!(TrustPolicy::new(Vec::new(), 0).unwrap_err().code(), "policy_invalid");
}
