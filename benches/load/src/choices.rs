//! Questions with several choices, whose log-probabilities are asked for as evaluation harnesses do.

use crate::client::Client;
use crate::prompts::Prompts;
use crate::report::Report;
use crate::{Failure, Load};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Questions of each round.
const QUESTIONS: u64 = 8;
/// Rounds of each kind, in turns.
const ROUNDS: u64 = 3;
/// Words of a choice.
const WORDS: usize = 6;

/// Scores so many choices in a request: those of a question behind one context, and as many behind a context
/// of their own, and gives the median of the ratios.
///
/// # Errors
/// Where the server refuses a request.
pub(crate) fn run(load: &Load, client: &Client, choices: u64) -> Result<Report, Failure> {
    let contexts = load.prompts()?;
    let endings = Prompts::new(load.prompt_file.as_deref(), WORDS, 0)?;
    // Every number is used once, so that nothing is found of another round or of an earlier program.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut begun = now.as_nanos() as u64;
    let mut time = |shared: bool| -> Result<f64, Failure> {
        let asked = Instant::now();
        for _ in 0..QUESTIONS {
            let context =
                |choice| contexts.number(begun.wrapping_add(if shared { 0 } else { choice }));
            let text = |choice| {
                format!("{} {}", context(choice), endings.number(begun.wrapping_add(choice)))
            };
            let texts: Vec<String> = (0..choices).map(text).collect();
            client.score(&texts)?;
            begun = begun.wrapping_add(choices);
        }
        Ok(asked.elapsed().as_secs_f64())
    };
    time(true)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((time(true)?, time(false)?));
    }
    rounds.sort_by(|(a, b), (c, d)| (b / a).total_cmp(&(d / c)));
    let (shared, anew) = rounds[rounds.len() / 2];
    let mut report = Report::default();
    let questions = QUESTIONS as f64;
    report.find(
        "choices behind a context that they share",
        shared * 1e3 / questions,
        "ms a question",
    );
    report.find("choices behind contexts of their own", anew * 1e3 / questions, "ms a question");
    report.find("ratio", anew / shared, "times");
    Ok(report)
}
