//! The commands about trust as their users see them: output, JSON, exit codes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn core_pack() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist")
}

/// A directory to work in, with a copy of the core pack in `pack`.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        copy_tree(&core_pack(), &desk.path("pack"));
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ruvllm-pack"))
            .args(args.iter().map(OsStr::new))
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    /// Runs with `--json`, which must end with that exit code.
    #[track_caller]
    fn json(&self, code: i32, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        let shown = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{shown}\n{errors}");
        let json: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(json["ok"], code == 0);
        json
    }

    /// Makes a key and gives its public half.
    fn key(&self, name: &str) -> String {
        let made = self.json(0, &["keygen", "--out", name]);
        made["public_key"].as_str().unwrap().to_owned()
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn codes(report: &Value) -> Vec<&str> {
    let details = report["error"]["details"].as_array().unwrap();
    details.iter().map(|detail| detail["code"].as_str().unwrap()).collect()
}

#[test]
fn several_keys_sign_at_once_and_a_policy_asks_for_both() {
    let desk = Desk::new();
    let (a, b) = (desk.key("a.pem"), desk.key("b.pem"));
    let signed =
        desk.json(0, &["sign", "--key", "a.pem", "--key", "b.pem", "--key", "a.pem", "pack"]);
    assert_eq!(
        (&signed["signatures"], signed["key_ids"].as_array().unwrap().len()),
        (&3.into(), 2)
    );
    for (name, key) in [("ann", &a), ("bob", &b)] {
        desk.json(0, &["trust", "add", "--name", name, "--key", key, "--pack", "ruvllm-*"]);
    }
    let text = fs::read_to_string(desk.path("trust.toml")).unwrap();
    fs::write(desk.path("trust.toml"), format!("# mine\nthreshold = 2\n{text}")).unwrap();
    desk.json(0, &["verify", "--policy", "trust.toml", "pack"]);
    desk.json(0, &["verify", "--trust", "trust.toml", "pack"]);
    let listed = desk.json(0, &["trust", "list", "--policy", "trust.toml"]);
    assert_eq!(
        (&listed["threshold"], &listed["publishers"][1]["name"]),
        (&2.into(), &"bob".into())
    );

    desk.json(0, &["trust", "revoke", "ann"]);
    let text = fs::read_to_string(desk.path("trust.toml")).unwrap();
    assert!(
        text.starts_with("# mine\n") && text.contains(&format!("revoked = [\"{a}\"]")),
        "{text}"
    );
    let refused = desk.json(1, &["verify", "--policy", "trust.toml", "pack"]);
    assert!(codes(&refused).contains(&"key_revoked"), "{refused}");
    desk.json(2, &["trust", "revoke", "ann"]);
    desk.json(2, &["trust", "revoke", "nobody"]);
    // Refused, and the file stays as it is.
    let twin = ["trust", "add", "--name", "cat", "--key", &a, "--pack", "*"];
    assert_eq!(desk.json(2, &twin)["error"]["code"], "policy_invalid");
    assert_eq!(fs::read_to_string(desk.path("trust.toml")).unwrap(), text);
    assert_eq!(desk.run(&["trust", "list"]).status.code(), Some(0), "the built-in policy");
}

#[test]
fn what_keygen_wrote_is_what_trust_add_takes() {
    let desk = Desk::new();
    let made = desk.json(0, &["keygen", "--out", "my.pem"]);
    let key = made["public_key"].as_str().unwrap();
    assert_eq!(made["public_key_file"], "my.pub");
    assert_eq!(fs::read_to_string(desk.path("my.pub")).unwrap(), format!("{key}\n"));
    for file in ["my.pem", "my.pub"] {
        assert_eq!(desk.json(0, &["pubkey", file])["public_key"], key);
        let printed = desk.run(&["pubkey", file]).stdout;
        assert_eq!(String::from_utf8_lossy(&printed), format!("{key}\n"));
    }
    desk.json(0, &["trust", "add", "--name", "me", "--key", "my.pub", "--pack", "ruvllm-*"]);
    fs::remove_file(desk.path("pack/kernels.json.sig")).unwrap();
    desk.json(0, &["sign", "--key", "my.pem", "pack"]);
    desk.json(0, &["verify", "--policy", "trust.toml", "pack"]);
    // A new pack names the key too.
    desk.json(0, &["new", "mine", "--lang", "c", "--signing-key", "my.pub"]);
    assert!(fs::read_to_string(desk.path("mine/pack.toml")).unwrap().contains(key));

    // Neither half is ever overwritten, and the public one does not take the secret one's place.
    desk.json(2, &["keygen", "--out", "my.pem"]);
    fs::remove_file(desk.path("my.pem")).unwrap();
    assert_eq!(desk.json(2, &["keygen", "--out", "my.pem"])["error"]["code"], "io");
    assert!(!desk.path("my.pem").exists());
    assert_eq!(desk.json(2, &["keygen", "--out", "a.pub"])["error"]["code"], "key_invalid");
}

#[test]
fn a_secret_key_in_place_of_a_public_one_is_refused_with_what_to_give_instead() {
    let desk = Desk::new();
    desk.key("my.pem");
    let add = |key: &str| {
        let args = ["trust", "add", "--name", "me", "--pack", "*", "--key", key];
        desk.json(2, &args)["error"]["message"].as_str().unwrap().to_owned()
    };
    let what = add("my.pem");
    assert!(what.contains("my.pem holds a secret key") && what.contains("give my.pub"), "{what}");
    fs::remove_file(desk.path("my.pub")).unwrap();
    let what = add("my.pem");
    assert!(what.contains("`ruvllm-pack pubkey my.pem`"), "{what}");
    fs::write(desk.path("raw"), [0x80; 32]).unwrap();
    assert!(add("raw").contains("holds a secret key"));
    fs::write(desk.path("notes"), "my key").unwrap();
    assert!(!add("notes").contains("secret"));
    assert!(add("missing.pub").contains("no file of that name"));
    assert!(!desk.path("trust.toml").exists());
}

#[test]
fn a_known_publisher_gets_a_second_pattern_and_trust_list_shows_what_trust_add_wrote() {
    let desk = Desk::new();
    let built_in = desk.json(0, &["trust", "list"]);
    assert_eq!(
        (&built_in["policy"], &built_in["publishers"][0]["name"]),
        (&Value::Null, &"ruvllm".into())
    );
    let (key, second) = (desk.key("my.pem"), desk.key("second.pem"));
    let without = desk.json(2, &["trust", "add", "--name", "me", "--pack", "a-*"]);
    assert!(without["error"]["message"].as_str().unwrap().contains("--key"), "{without}");
    desk.json(0, &["trust", "add", "--name", "me", "--key", "my.pub", "--pack", "a-*"]);
    let listed = || desk.json(0, &["trust", "list"]);
    let packs = |of: usize| listed()["publishers"][of]["packs"].clone();
    assert_eq!((&listed()["policy"], packs(0)), (&"trust.toml".into(), Value::from(vec!["a-*"])));

    // By the key, and by the name alone; what is there already is not there twice.
    let text = fs::read_to_string(desk.path("trust.toml")).unwrap();
    fs::write(desk.path("trust.toml"), format!("# mine\n{text}")).unwrap();
    let changed = desk.json(
        0,
        &["trust", "add", "--name", "me", "--key", &key, "--pack", "b-*", "--pack", "a-*"],
    );
    assert_eq!(
        (&changed["action"], &changed["keys"][0]),
        (&"changed".into(), &key.as_str().into())
    );
    assert_eq!(packs(0), Value::from(vec!["a-*", "b-*"]));
    desk.json(0, &["trust", "add", "--name", "me", "--key", "second.pub", "--pack", "z"]);
    assert_eq!(listed()["publishers"][1]["key"], second.as_str());
    let until = "2099-01-01T00:00:00Z";
    desk.json(0, &["trust", "add", "--name", "me", "--pack", "c-*", "--not-after", until]);
    assert_eq!((packs(0), packs(1)), (vec!["a-*", "b-*", "c-*"].into(), vec!["z", "c-*"].into()));
    assert_eq!(listed()["publishers"][1]["not_after"], until);
    desk.json(0, &["trust", "add", "--name", "me", "--threads"]);
    assert_eq!(listed()["publishers"][0]["threads"], true);
    assert_eq!(packs(1), Value::from(vec!["z", "c-*"]));
    desk.key("third.pem");
    let without_packs = |command| {
        let refused = desk.json(2, &[command, "add", "--name", "me", "--key", "third.pub"]);
        assert!(refused["error"]["message"].as_str().unwrap().contains("--pack"), "{refused}");
    };
    without_packs("trust");
    assert!(fs::read_to_string(desk.path("trust.toml")).unwrap().starts_with("# mine\n"));
    desk.json(2, &["trust", "add", "--name", "me", "--pack", "No Pattern"]);

    assert_eq!(desk.json(0, &["trust", "list", "--built-in"])["policy"], Value::Null);
    desk.json(2, &["trust", "list", "--policy", "missing.toml"]);

    // A keyring likewise.
    desk.json(0, &["keyring", "new", "--name", "fleet", "--root", "second.pub"]);
    desk.json(0, &["keyring", "add", "--name", "me", "--key", "my.pub", "--pack", "a-*"]);
    let more = desk.json(0, &["keyring", "add", "--name", "me", "--pack", "b-*"]);
    assert_eq!(more["publishers"][0]["packs"], Value::from(vec!["a-*", "b-*"]));
    assert_eq!((&more["serial"], more["publishers"].as_array().unwrap().len()), (&3.into(), 1));
    desk.json(2, &["keyring", "add", "--name", "who", "--pack", "b-*"]);
    without_packs("keyring");
}

#[cfg(unix)]
#[test]
fn an_exposed_or_unknown_key_file_is_exit_code_2_and_its_contents_are_not_shown() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    desk.key("a.pem");
    let pem = fs::read_to_string(desk.path("a.pem")).unwrap();
    fs::set_permissions(desk.path("a.pem"), PermissionsExt::from_mode(0o644)).unwrap();
    let error = desk.json(2, &["sign", "--key", "a.pem", "pack"]);
    assert_eq!(error["error"]["code"], "key_exposed");
    fs::write(desk.path("b.pem"), pem.replace("MC4C", "MC5C")).unwrap();
    fs::set_permissions(desk.path("b.pem"), PermissionsExt::from_mode(0o600)).unwrap();
    let output = desk.run(&["sign", "--key", "b.pem", "pack"]);
    let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    assert!(!shown.contains(&body[30..50]), "{shown}");
    // A public key that is a secret key is not quoted either.
    let output = desk.run(&["trust", "add", "--name", "a", "--pack", "*", "--key", "b.pem"]);
    let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!shown.contains(&body[30..50]), "{shown}");
}

#[test]
fn a_keyring_is_made_signed_rotated_and_followed() {
    let desk = Desk::new();
    let (root, a, b) = (desk.key("root.pem"), desk.key("a.pem"), desk.key("b.pem"));
    fs::remove_file(desk.path("pack/kernels.json.sig")).unwrap();
    desk.json(0, &["sign", "--key", "a.pem", "pack"]);
    let expires = "2099-01-01T00:00:00Z";
    desk.json(0, &["keyring", "new", "--name", "fleet", "--root", &root, "--expires", expires]);
    desk.json(2, &["keyring", "new", "--name", "fleet", "--root", &root]);
    let add = ["keyring", "add", "--name", "ann", "--key", &a, "--pack", "ruvllm-*"];
    assert_eq!(desk.json(0, &add)["serial"], 2);
    let at = ["--at", "2027-01-01T00:00:00Z"];
    let verify = |code| {
        let args = ["keyring", "verify", "--root", &root, "--floors", "floors"];
        desk.json(code, &[&args[..], &at].concat())
    };
    assert_eq!(verify(2)["error"]["code"], "io", "no signature yet");
    desk.json(0, &["keyring", "sign", "--key", "root.pem"]);
    assert_eq!(verify(0)["verified"], true);
    let policy = format!("version = 1\n[keyring]\nfile = \"keyring.json\"\nroots = [\"{root}\"]\n");
    fs::write(desk.path("trust.toml"), policy).unwrap();
    let check = |code| {
        let args = ["verify", "--policy", "trust.toml", "--floors", "floors", "pack"];
        desk.json(code, &[&args[..], &at].concat())
    };
    assert_eq!(check(0)["publishers"][0][0], "ann");
    let old = fs::read(desk.path("keyring.json")).unwrap();
    let old_signature = fs::read(desk.path("keyring.json.sig")).unwrap();

    assert_eq!(desk.run(&["rotate", "ann", "--new-key", &b]).status.code(), Some(2));
    let rotated = desk.json(0, &["rotate", "ann", "--new-key", &b, "--revoke", "leaked"]);
    assert_eq!((&rotated["serial"], &rotated["revoked"][0][2]), (&3.into(), &"leaked".into()));
    assert!(!desk.path("keyring.json.sig").exists(), "the old signature is over other bytes");
    desk.json(0, &["keyring", "sign", "--key", "root.pem"]);
    assert_eq!(codes(&check(1)), ["key_revoked"]);
    desk.json(0, &["sign", "--key", "b.pem", "pack"]);
    check(0);
    fs::write(desk.path("keyring.json"), old).unwrap();
    fs::write(desk.path("keyring.json.sig"), old_signature).unwrap();
    assert_eq!(check(1)["error"]["code"], "keyring_rollback");
    assert_eq!(desk.json(0, &["keyring", "show"])["serial"], 2);
    let shown = desk.run(&["keyring", "show"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("(not checked)"));
    desk.json(0, &["keyring", "revoke", &a, "--reason", "gone"]);
    desk.json(0, &["keyring", "roots", "--root", &root, "--root", &b, "--threshold", "2"]);
}

#[test]
fn a_lock_pins_packs_and_is_checked() {
    let desk = Desk::new();
    let locked = desk.json(0, &["lock", "pack"]);
    assert_eq!(locked["packs"][0]["pack"][0], "ruvllm-core-kernels");
    desk.json(0, &["lock", "--check", "pack"]);
    desk.json(0, &["verify", "--lock", "packs.lock", "pack"]);
    let text = fs::read_to_string(desk.path("packs.lock")).unwrap();
    let at = text.find("sha256:").unwrap() + 7;
    let other = format!("{}{}{}", &text[..at], "0".repeat(64), &text[at + 64..]);
    fs::write(desk.path("packs.lock"), other).unwrap();
    let checked = desk.json(1, &["lock", "--check", "pack"]);
    assert_eq!(checked["packs"][0]["objection"][0], "lock_mismatch");
    assert_eq!(
        codes(&desk.json(1, &["verify", "--lock", "packs.lock", "pack"])),
        ["lock_mismatch"]
    );
    fs::write(desk.path("packs.lock"), "version = 1\n[packs]\n").unwrap();
    let refused = desk.json(1, &["verify", "--lock", "packs.lock", "pack"]);
    assert_eq!(codes(&refused), ["pack_not_locked"]);
    fs::write(desk.path("packs.lock"), "version = 9\n[packs]\n").unwrap();
    assert_eq!(desk.json(2, &["lock", "--check", "pack"])["error"]["code"], "lock_invalid");
}

#[test]
fn an_archive_is_read_wherever_a_directory_is() {
    let desk = Desk::new();
    let made = desk.json(0, &["archive", "pack"]);
    assert!(desk.path("pack.rkp").is_file());
    desk.json(0, &["archive", "pack.rkp", "-o", "again.rkp"]);
    let read = |name: &str| fs::read(desk.path(name)).unwrap();
    assert_eq!(read("pack.rkp"), read("again.rkp"));
    let (folder, file) = (desk.json(0, &["verify", "pack"]), desk.json(0, &["verify", "pack.rkp"]));
    assert_eq!(folder, file);
    assert_eq!(made["digest"], folder["digest"]);
    assert_eq!(desk.json(0, &["inspect", "pack.rkp"])["digest"], folder["digest"]);
    desk.json(0, &["lock", "pack.rkp"]);
    desk.json(0, &["archive", "pack.rkp", "--extract", "out"]);
    assert_eq!(desk.json(0, &["verify", "out"])["digest"], folder["digest"]);
    desk.json(2, &["archive", "pack.rkp", "--extract", "out"]);
    let mut bytes = read("pack.rkp");
    bytes.push(0);
    fs::write(desk.path("pack.rkp"), bytes).unwrap();
    assert_eq!(codes(&desk.json(1, &["verify", "pack.rkp"])), ["archive_trailing"]);
}

#[test]
fn floors_are_shown_and_rolled_back_with_a_name_and_a_reason() {
    let desk = Desk::new();
    desk.json(2, &["floor", "show", "floors"]);
    fs::create_dir(desk.path("floors")).unwrap();
    let record = r#"{"format":2,"pack":"p","floor":"2.0.0","history":["1.0.0","2.0.0"]}"#;
    fs::write(desk.path("floors/p.floor"), record).unwrap();
    let shown = desk.json(0, &["floor", "show", "floors"]);
    assert_eq!(shown["packs"][0][1], "2.0.0");
    let rollback = |version: &str, code| {
        let args = ["floor", "rollback", "--floors", "floors", "p", version, "--operator", "ann"];
        desk.json(code, &[&args[..], &["--reason", "2.0.0 is slow"]].concat())
    };
    assert_eq!(rollback("1.5.0", 1)["error"]["code"], "rollback_refused");
    assert_eq!(rollback("1.0.0", 0)["rollback"]["from"], "2.0.0");
    let shown = desk.run(&["floor", "show", "floors"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("2.0.0 -> 1.0.0  by ann: 2.0.0 is slow"), "{text}");
    assert_eq!(desk.run(&["floor", "rollback", "p", "1.0.0"]).status.code(), Some(2));
}
