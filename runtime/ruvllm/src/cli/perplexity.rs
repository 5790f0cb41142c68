//! `ruvllm perplexity`: how well a model predicts a text.

use super::args::PerplexityArgs;
use super::stop::StopFlag;
use super::{Ended, Failure, setup};
use ruvllm::engine::{Perplexity, perplexity};

/// Context where neither the options nor the model ask for less; the reference tool's default.
const DEFAULT_CONTEXT: usize = 512;

pub(crate) fn main(args: &PerplexityArgs) -> Result<Ended, Failure> {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| format!("{}: {error}", args.file.display()))?;
    let stop = StopFlag::install()?;
    let runtime = setup::runtime(&args.model)?;
    let context = args.model.ctx.unwrap_or_else(|| DEFAULT_CONTEXT.min(runtime.engine().context()));
    let result = perplexity(runtime.engine(), &text, context, &mut |so_far: &Perplexity| {
        eprint!("\r[{}/{}] {:.4} ", so_far.chunks_done, so_far.chunks, so_far.perplexity);
        stop.flow()
    })?;
    eprintln!();
    setup::report_incidents(&runtime);
    if args.json {
        println!("{}", serde_json::to_string(&result)?);
    } else {
        println!(
            "perplexity {:.4} +/- {:.5} over {} tokens in {} chunks of {}, {:.1} s",
            result.perplexity,
            result.standard_error,
            result.scored,
            result.chunks_done,
            result.context,
            result.seconds
        );
    }
    Ok(if stop.is_set() { Ended::Interrupted } else { Ended::Done })
}
