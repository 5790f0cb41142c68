//! Refuses a build that would compare an engine without its instructions.

fn main() {
    println!("cargo:rerun-if-env-changed=CMAKE_CXX_FLAGS");
    let flags = std::env::var("CMAKE_CXX_FLAGS").unwrap_or_default();
    let march = flags.split_whitespace().find_map(|flag| flag.strip_prefix("-march="));
    match march {
        Some(march) => println!("cargo::rustc-env=LLAMA_CPP_MARCH={march}"),
        None => println!(
            "cargo::error=llama.cpp would be built without this processor's instructions; \
             run cargo in benches/peers, whose .cargo/config.toml has the flags"
        ),
    }
}
