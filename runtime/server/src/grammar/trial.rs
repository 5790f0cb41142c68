//! Compiling a grammar on trial, in a process with limits, before this one compiles it.
//!
//! What a schema costs its compiler does not follow from its length: a number that must divide the value, or
//! alternatives within alternatives, can take minutes and gigabytes, and the compiler cannot be stopped. So
//! it compiles in a [`Pool`] first, which bounds its time, its memory and its stack whatever it does, and
//! reports its [`Size`]. Compiling it again costs no more than that: the compiler is deterministic, and its
//! time and memory do not depend on the vocabulary.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::earley::CGrammar;
use llguidance::earley::regexvec::LexerStats;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{HashSet, ParserFactory, TokenParser, panic_utils};
use ruvllm_host::process::{Failure, HelperProcess, Pool, answer_requests};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// Where the grammars of requests are compiled on trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GrammarCompiler {
    /// Nowhere: requests that need a grammar are refused.
    #[default]
    None,
    /// Not at all: a request can take this process's time and memory. For clients that are trusted as code
    /// is.
    InProcess,
    /// In processes of their own, which the system stops at their limits.
    Process(HelperProcess),
}

impl GrammarCompiler {
    /// The argument on which a program that compiles its own grammars calls [`grammar_process`].
    pub const COMMAND: &str = "try-grammar";

    /// This program, started anew with [`GrammarCompiler::COMMAND`], for two grammars at the same time, at
    /// most 2 s and 512 MiB for each.
    pub fn this_program() -> Self {
        let process = HelperProcess::this_program(Self::COMMAND);
        let time = Duration::from_secs(2);
        Self::Process(HelperProcess { processes: 2, time, ..process })
    }
}

/// The stack that a grammar may take on trial; helper threads have twice that.
const STACK: usize = 1 << 20;
/// The most bytes by which a process answers.
const MAX_ANSWER: usize = 64 << 10;
/// The longest reason for a refusal, in characters.
const MAX_REASON: usize = 1000;

/// What the library bounds, here and on trial: symbols, the cost of one mask, which all texts of a step wait
/// for, and states of its lexer. It prepares nothing by a walk through the vocabulary, which is not the one
/// of the trial. Its messages go to clients, so they have none of its state.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 50_000,
        step_lexer_fuel: 100_000,
        max_lexer_states: 50_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// What a compiled grammar takes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Size {
    /// Bytes of a text's state at its beginning.
    pub(super) state: usize,
    /// Those of them that stay as they are: the description of the lexer, of which each text has a copy.
    pub(super) copied: usize,
    /// Symbols in its productions, which all texts share.
    pub(super) symbols: usize,
}

/// Bytes of a state that are there in any case.
const STATE: usize = 128 << 10;
/// Bytes of a lexeme's description, beside its expressions.
const LEXEME: usize = 512;
/// Bytes of a lexer's state beyond those that the library counts.
const LEXER_STATE: usize = 200;
/// Bytes per unit of what regular expressions have cost. Measured with divisors from 10^6 to 2^31 as 6.3 to
/// 6.6, most of which the library does not count.
const COST: usize = 8;

impl Size {
    pub(super) fn of(parser: &TokenParser) -> Size {
        let stats = parser.parser.lexer_stats();
        // The expressions stand in the description once more.
        let lexemes = stats.num_regexps.saturating_mul(LEXEME);
        let copied = STATE.saturating_add(lexemes).saturating_add(stats.num_bytes);
        let state = copied.saturating_add(lexer_bytes(&stats));
        Size { state, copied, symbols: symbols(parser.parser.grammar()) }
    }
}

/// The bytes that a lexer takes by now.
pub(super) fn lexer_bytes(stats: &LexerStats) -> usize {
    let states = stats.num_states.saturating_mul(LEXER_STATE);
    // A vector that grows has room for twice as much as it holds.
    let counted = stats.num_bytes.saturating_add(states).saturating_mul(2);
    counted.max(stats.total_fuel_spent.saturating_mul(COST))
}

fn symbols(grammar: &CGrammar) -> usize {
    let (mut seen, mut count) = (HashSet::default(), 0);
    let mut left = vec![grammar.start()];
    while let Some(symbol) = left.pop() {
        if seen.insert(symbol) {
            for &rule in grammar.rules_of(symbol) {
                let (elements, ..) = grammar.rule_rhs(rule);
                count += 1 + elements.len();
                left.extend(elements);
            }
        }
    }
    count
}

/// Why a grammar is refused.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// It is no schema, or one that the library does not know.
    Invalid(String),
    /// It has keywords that would not be kept.
    Unsupported(String),
    /// It takes more than it may.
    TooComplex(String),
}

impl Refusal {
    /// What the client is told, whose parameter `param` it is.
    pub(super) fn to_api(&self, param: &str) -> ApiError {
        let (code, reason) = match self {
            Refusal::Invalid(reason) => ("invalid_schema", reason),
            Refusal::Unsupported(reason) => ("unsupported_schema", reason),
            Refusal::TooComplex(reason) => ("schema_too_complex", reason),
        };
        ApiError::bad_request(code, format!("`{param}` cannot be enforced: {reason}")).of(param)
    }
}

/// An error of the library in one line, without its backtrace.
pub(super) fn reason(error: &impl ToString) -> String {
    let error = error.to_string();
    error.lines().next().unwrap_or_default().chars().take(MAX_REASON).collect()
}

/// Compiles a grammar for a vocabulary.
pub(super) fn compile(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
) -> Result<TokenParser, Refusal> {
    let parser = factory.create_parser(grammar).map_err(|error| {
        let reason = reason(&error);
        // The library's errors have no kinds, but what exceeds a limit of its own says so.
        match ["too big", "too large", "fuel"].iter().any(|words| reason.contains(words)) {
            true => Refusal::TooComplex(reason),
            false => Refusal::Invalid(reason),
        }
    });
    let mut parser = parser?;
    // Keywords that are not enforced must not seem to be.
    if let Some(warning) = parser.grammar_warnings().first() {
        return Err(Refusal::Unsupported(reason(warning)));
    }
    parser.start_without_prompt();
    Ok(parser)
}

/// Compiles a grammar, and goes as far as its texts have in common.
fn try_out(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Size, Refusal> {
    let mut parser = compile(factory, grammar)?;
    let size = Size::of(&parser);
    let walk = |parser: &mut TokenParser| {
        parser.compute_mask()?;
        for byte in parser.force_bytes() {
            parser.consume_token(byte.into())?;
        }
        if !parser.check_stop()? {
            parser.compute_mask()?;
        }
        Ok(())
    };
    let walked = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| walk(&mut parser)));
    walked.map(|()| size).map_err(|error| match parser.stop_reason() {
        StopReason::NoExtensionBias => Refusal::Invalid("no text satisfies it".to_owned()),
        _ => Refusal::TooComplex(reason(&error)),
    })
}

/// The processes that grammars are tried in.
#[derive(Debug)]
pub(super) struct Trial(Pool);

impl Trial {
    pub(super) fn new(process: HelperProcess) -> Trial {
        Trial(Pool::new(process, Vec::new(), 0))
    }

    /// Grammars that can be tried at the same time.
    pub(super) fn places(&self) -> usize {
        self.0.process().processes.max(1)
    }

    /// Whether a grammar can be compiled, as long as somebody waits for it, which is for `patience` at most.
    ///
    /// # Errors
    /// What is to be told of it as `param`.
    pub(super) fn size(
        &self,
        grammar: &TopLevelGrammar,
        param: &str,
        patience: Duration,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Size, ApiError> {
        let internal = |error: serde_json::Error| ApiError::internal(error.to_string());
        let request = serde_json::to_vec(grammar).map_err(internal)?;
        let HelperProcess { memory_bytes, time, .. } = self.0.process();
        let failure = match self.0.ask(&request, MAX_ANSWER, waited_for) {
            Ok(size) => return serde_json::from_slice(&size).map_err(internal),
            Err(failure) => failure,
        };
        let refusal = match failure {
            Failure::Refused(refusal) => serde_json::from_slice(&refusal).map_err(internal)?,
            Failure::Late => {
                Refusal::TooComplex(format!("compiling it takes longer than {time:?}"))
            }
            Failure::Ended => {
                let memory = memory_bytes >> 20;
                let reason =
                    format!("compiling it takes more than {memory} MiB, or too much stack");
                Refusal::TooComplex(reason)
            }
            // Whoever is still there to read it has waited for too long.
            Failure::Cancelled => return Err(ApiError::timeout(patience)),
            Failure::Unavailable { reason } => {
                return Err(ApiError::unhealthy("helper_unavailable", reason));
            }
        };
        Err(refusal.to_api(param))
    }
}

/// The process for grammars: reads them from standard input, compiles them and writes their sizes to standard
/// output, under the limits that it is told first.
///
/// A program whose [`GrammarCompiler`] names itself calls this at the top of `main` when it sees the
/// arguments that it chose, before it starts a thread.
pub fn grammar_process() -> ExitCode {
    let to_bytes = |answer: Result<Size, Refusal>| {
        // Nothing in them cannot be written; no bytes at all are an error, too.
        let bytes = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        match answer {
            Ok(size) => Ok(bytes(serde_json::to_vec(&size))),
            Err(refusal) => Err(bytes(serde_json::to_vec(&refusal))),
        }
    };
    answer_requests(|_| {
        let bytes: TokEnv = ApproximateTokEnv::single_byte_env();
        let factory = ParserFactory::new_simple(&bytes);
        let mut factory = factory.map_err(|error| error.to_string().into_bytes())?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(move |request: &[u8]| {
            let grammar = serde_json::from_slice(request);
            let grammar = grammar.map_err(|error| error.to_string().into_bytes())?;
            let tried = thread::scope(|scope| {
                let small = thread::Builder::new().stack_size(STACK);
                let tried = small.spawn_scoped(scope, || try_out(&factory, grammar))?;
                Ok(tried.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            });
            to_bytes(tried.unwrap_or_else(|error: std::io::Error| {
                Err(Refusal::TooComplex(format!("its thread cannot be started: {error}")))
            }))
        })
    })
}
