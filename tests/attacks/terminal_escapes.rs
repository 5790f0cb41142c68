//! Names in a pack try to steer the terminal of who reads the error.

use crate::good_pack;
use serde_json::json;

#[test]
fn no_error_about_a_pack_holds_a_control_character_of_it() {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}";
    let pack = good_pack();
    #[cfg(unix)]
    pack.write(evil, b"");
    let unlisted = pack.verify().unwrap_err().to_string();
    #[cfg(unix)]
    pack.remove(evil);
    pack.sign_edited(|m| {
        m["name"] = json!(evil);
        m["description"] = json!(evil);
        m[evil] = json!(evil);
        m["kernels"][0]["path"] = json!(format!("../{evil}"));
        m["kernels"][0]["op"] = json!(evil);
    });
    let manifest = pack.verify().unwrap_err().to_string();
    for text in [unlisted, manifest] {
        let safe = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(text.chars().all(safe), "{text:?}");
    }
}
