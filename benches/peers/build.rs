//! Refuses a build that would compare an engine without its instructions.

fn main() {
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if !flags.contains("target-cpu=native") {
        println!(
            "cargo::error=llama.cpp and candle would be built without this processor's instructions; \
             run cargo in benches/peers, whose .cargo/config.toml has the flags"
        );
    }
}
