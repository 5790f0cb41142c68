//! A secret key shows up in what is printed: debug output, errors about its file, errors about files
//! that it was put into by mistake.

use ruvllm_signing::{Keyring, PackLock, PublicKey, SecretKey, TrustPolicy};
use std::fmt::{Debug, Display};

/// Texts that would give the key away: its PEM body, its seed as hex in both cases and as base64.
struct Secret {
    key: SecretKey,
    pem: String,
    tells: Vec<String>,
}

impl Secret {
    fn new() -> Self {
        let key = SecretKey::generate().unwrap();
        let pem = key.to_pem().unwrap().to_string();
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        // PKCS#8 of an Ed25519 key is 16 bytes and the seed: 21 base64 digits and some of the 22nd.
        let (head, seed) = (&body[..21], &body[22..]);
        assert_eq!(head, "MC4CAQAwBQYDK2VwBCIEI");
        Self { tells: vec![body.clone(), seed[..12].to_owned(), seed[20..].to_owned()], key, pem }
    }

    #[track_caller]
    fn is_not_in(&self, text: &str) {
        let short: String = text.chars().take(300).collect();
        for tell in &self.tells {
            assert!(!text.contains(tell.as_str()), "the key is in: {short}");
        }
    }

    #[track_caller]
    fn is_not_in_the_error_of<T>(&self, result: Result<T, impl Debug + Display>) {
        let error = result.err().expect("this is refused");
        self.is_not_in(&format!("{error} {error:?} {error:#?}"));
    }
}

#[test]
fn no_output_of_a_key_holds_the_key() {
    let secret = Secret::new();
    secret.is_not_in(&format!("{:?} {:#?}", secret.key, secret.key));
}

#[test]
fn no_error_about_a_key_file_quotes_it() {
    let secret = Secret::new();
    let pem = &secret.pem;
    let dir = tempfile::tempdir().unwrap();
    let openssh = pem.replace("PRIVATE KEY", "OPENSSH PRIVATE KEY");
    let encrypted = pem.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let cut = &pem[..pem.len() - 40];
    let flipped = pem.replacen("MC4C", "MC5C", 1);
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let spoilt: Vec<String> = vec![
        openssh,
        encrypted,
        cut.to_owned(),
        flipped,
        body.clone(),
        format!("{}=", &body[22..]),
        pem.replace("-----END", "----END"),
    ];
    for (i, text) in spoilt.iter().enumerate() {
        secret.is_not_in_the_error_of(SecretKey::parse(text.as_bytes()));
        secret.is_not_in_the_error_of(SecretKey::from_pem(text));
        secret.is_not_in_the_error_of(SecretKey::from_openssh(text));
        let path = dir.path().join(format!("{i}.pem"));
        std::fs::write(&path, text).unwrap();
        secret.is_not_in_the_error_of(SecretKey::read_file(&path));
        #[cfg(unix)]
        {
            let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, owner).unwrap();
            secret.is_not_in_the_error_of(SecretKey::read_file(&path));
        }
    }
    // There already: it is neither overwritten nor quoted.
    let path = dir.path().join("0.pem");
    secret.is_not_in_the_error_of(secret.key.write_new_file(&path));
}

#[test]
fn no_error_about_a_file_that_a_key_was_put_into_quotes_it() {
    let secret = Secret::new();
    let pem = &secret.pem;
    let one_line: String = pem.lines().collect::<Vec<_>>().join(" ");
    secret.is_not_in_the_error_of(PublicKey::from_text(pem));
    secret.is_not_in_the_error_of(PublicKey::from_text(&one_line));
    secret.is_not_in_the_error_of(one_line.parse::<PublicKey>());
    for text in [
        pem.clone(),
        format!("version = 1\nsecret = \"{one_line}\"\n"),
        format!("version = 1\nsecret = \"\"\"{pem}\"\"\"\n"),
        format!("version = 1\n{one_line}\n"),
        format!("version = \"{one_line}\"\n"),
        format!("version = 1\nthreshold = \"{one_line}\"\npublishers = []\n"),
        format!("version = 1\npublishers = \"{one_line}\"\npacks = \"{one_line}\"\n"),
        format!("version = 1\n[[publishers]]\nname = \"a\"\nkey = \"{one_line}\"\npacks = []\n"),
        format!("version = 1\nrevoked = [\"{one_line}\"]\npublishers = []\n"),
        format!("version = 1\nwithout_clock = \"{one_line}\"\npublishers = []\n"),
    ] {
        secret.is_not_in_the_error_of(TrustPolicy::from_toml(&text));
        secret.is_not_in_the_error_of(PackLock::from_toml(&text));
    }
    for field in ["version", "name", "serial", "issued_at", "roots", "publishers", "revoked"] {
        let text = format!("{{\"version\": 1, \"{field}\": \"{one_line}\"}}");
        secret.is_not_in_the_error_of(Keyring::parse(text.as_bytes()));
    }
}
