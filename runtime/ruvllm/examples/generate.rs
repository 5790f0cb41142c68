//! Generates a story from the built-in model and breaks off after a number of sentences.
//!
//! ```console
//! cargo run --release --example generate -- "One sunny morning"
//! ```

use ruvllm::{GenerateOptions, Prompt, Runtime, SamplingOptions};
use std::io::Write as _;
use std::ops::ControlFlow;

fn main() -> Result<(), ruvllm::Error> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "Once upon a time".to_owned());
    let runtime = Runtime::builder().threads(2).build()?;
    let options = GenerateOptions {
        sampling: SamplingOptions { temperature: 0.7, seed: Some(3), ..SamplingOptions::default() },
        ..GenerateOptions::default()
    };

    print!("{prompt}");
    let mut sentences = 0;
    let done = runtime.generate(Prompt::Raw(&prompt), &options, |text| {
        print!("{text}");
        let _ = std::io::stdout().flush();
        sentences += text.matches('.').count();
        if sentences < 8 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    println!();

    let report = runtime.report(&done);
    println!("{} tokens, {:.0} a second", report.generated_tokens, report.decode_tokens_per_second);
    Ok(())
}
