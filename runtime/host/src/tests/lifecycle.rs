//! The tests in the documentation of the steps of a kernel's life: what they try in vain is refused for the step that it
//! skips, and not because a name in it is out of date, which a stable compiler does not tell apart.

use std::fs;
use std::path::Path;

#[test]
fn what_is_refused_compiles_where_fields_are_seen_or_with_the_type_of_the_step() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut refused = 0;
    let files = ["gate/mod.rs", "admit/mod.rs", "code.rs", "registry/kernel.rs"];
    for file in files.into_iter().chain(["../../../signing/core/src/verify.rs"]) {
        let text = fs::read_to_string(src.join(file)).unwrap();
        for block in text.split("```compile_fail,").skip(1) {
            let lines = block.lines().skip_while(|line| !line.starts_with("/// fn "));
            let tried: Vec<_> = lines.take_while(|line| *line != "/// ```").collect();
            let tried = format!("\n{}\n", tried.join("\n"));
            let compiles = match tried.contains("Unverified") {
                true => tried.replace("Unverified", "Verified"),
                false => tried.replace("/// ", ""),
            };
            assert!(text.contains(&compiles), "{file}: {compiles}");
            refused += 1;
        }
    }
    assert_eq!(refused, 6);
}
