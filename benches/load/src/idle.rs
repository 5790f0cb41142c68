//! Many conversations that rest, and what coming back to one takes.

use crate::client::{Answer, Client};
use crate::load::spread;
use crate::prompts::Prompts;
use crate::report::{Report, Row};
use crate::{Failure, Load};

/// What a conversation goes on with.
const MORE: &str = " and then the little fox said";

/// Of so many conversations that rest, one of the same length is begun anew for comparison.
const COMPARED: usize = 10;

/// Opens conversations, comes back to each, and begins some of the same length anew.
///
/// # Errors
/// Where a conversation could not be opened, or the server has no metrics.
pub(crate) fn run(load: &Load, client: &Client, sessions: usize) -> Result<Report, Failure> {
    let (prompts, streams) = (load.prompts()?, load.parallel);
    let tokens = load.pace.tokens;
    let open =
        |client: &Client, n: usize| client.complete(&prompts.number(n as u64), tokens, usize::MAX);
    let opened = spread(client, sessions, streams, &open);
    if let Some(error) = opened.iter().find_map(|answer| answer.error.as_ref()) {
        return Err(format!("a conversation could not be opened: {error}").into());
    }
    let mut report = Report::default();
    report.rows.push(Row::of("open", &opened));
    for name in ["ruvllm_kv_bytes", "ruvllm_kv_blocks", "ruvllm_memory_used_bytes"] {
        for (sample, value) in client.metrics(name)? {
            report.find(format!("idle: {sample}"), value, "");
        }
    }
    let texts: Vec<String> = (opened.iter().enumerate())
        .map(|(n, answer)| prompts.number(n as u64) + &answer.text + MORE)
        .collect();
    let back = |client: &Client, n: usize| client.complete(&texts[n], tokens, usize::MAX);
    // One at a time: what coming back takes, and not what waiting for others does.
    report.rows.push(Row::of("come back", &spread(client, sessions, 1, &back)));
    report.rows.push(Row::of("begin anew", &anew(client, &prompts, &opened, sessions, tokens)));
    Ok(report)
}

/// Conversations as long as those, which nobody has had.
fn anew(
    client: &Client,
    prompts: &Prompts,
    opened: &[Answer],
    sessions: usize,
    tokens: usize,
) -> Vec<Answer> {
    let begin = |client: &Client, n: usize| {
        // Another's answer behind a prompt of its own.
        let text = prompts.number((sessions + n) as u64) + &opened[n].text + MORE;
        client.complete(&text, tokens, usize::MAX)
    };
    spread(client, sessions.div_ceil(COMPARED), 1, &begin)
}
