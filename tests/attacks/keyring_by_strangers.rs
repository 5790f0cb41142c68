//! A keyring is signed by keys that are no roots, or by too few, or its bytes were changed.

use crate::keyrings::{KeyringHost, key, keyring, roots, signed};
use ruvllm_signing::{UnverifiedKeyring, sign_manifest};

#[test]
fn a_keyring_that_names_itself_trusted_is_refused() {
    let [root, other, stranger] = [key(), key(), key()];
    let host = KeyringHost::trusting(roots(&[&root, &other], 2));
    let usurper = keyring(1, roots(&[&stranger], 1));
    assert_eq!(host.refuses(signed(&usurper, &[&stranger])), "keyring_not_trusted");
    let honest = keyring(1, roots(&[&root, &other], 2));
    assert_eq!(host.refuses(signed(&honest, &[&root])), "keyring_not_trusted");
    assert_eq!(host.refuses(signed(&honest, &[&root, &stranger])), "keyring_not_trusted");
    // The trusted roots alone are not enough for roots that have never signed.
    assert_eq!(host.refuses(signed(&usurper, &[&root, &other])), "keyring_not_trusted");
    host.admit(signed(&honest, &[&root, &other])).unwrap();
}

#[test]
fn a_keyring_whose_bytes_were_changed_is_refused() {
    let root = key();
    let host = KeyringHost::trusting(roots(&[&root], 1));
    let json = keyring(1, roots(&[&root], 1)).to_json().unwrap();
    let envelope = sign_manifest(json.as_bytes(), &[&root]).unwrap().to_json().into_bytes();
    let offer = |text: &str| UnverifiedKeyring::new(text.as_bytes().to_vec(), envelope.clone());
    let wider = json.replace("\"native\": false", "\"native\": true");
    assert_ne!(wider, json);
    for changed in
        [wider.as_str(), &json.replace("2027", "2099"), &format!("{json}\n"), json.trim()]
    {
        assert_eq!(host.refuses(offer(changed)), "keyring_not_trusted");
    }
    for broken in ["", "{}", &json[..json.len() / 2], &format!("{json}x")] {
        assert_eq!(host.refuses(offer(broken)), "keyring_syntax");
    }
    assert!(host.admit(offer(&json)).is_ok());
}
