//! Structured output: grammars that decide which tokens may follow, by llguidance.
//!
//! A grammar comes with a request and may cost its compiler anything, so it is compiled on trial first
//! (`trial`), few at the same time and one of each client, whatever other requests are waiting for. What
//! compiled grammars hold on to is counted (`memory`): for a text, as far as it has come, and of a client
//! and of all clients together. What exceeds a bound is refused, with what was too large.

mod memory;
mod trial;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser, panic_utils};
use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{Model, TokenConstraint, TokenMask};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;
use crate::error::ApiError;
use crate::http::Caller;
use memory::{Held, Memory};
use trial::{Refusal, Size, Trial, lexer_bytes};

pub use trial::{GrammarCompiler, grammar_process};

/// The bytes that one text's state may take.
const MAX_STATE: usize = 64 << 20;
/// Bytes per item of a parser's rows: 8 for itself, the rest for what finds it.
const ITEM: usize = 16;
/// Bytes per symbol of a grammar. Measured with 50,000 in 5,000 optional properties as 900.
const SYMBOL: usize = 1 << 10;
/// What a text's error says where all grammars together take too much.
pub(crate) const FULL: &str = "the grammars of all requests take as much memory as they may";

/// What a request wants its answers to be like.
pub(crate) struct Wanted {
    grammar: TopLevelGrammar,
    /// The same without tokens of the vocabulary, which trials do not have.
    on_trial: TopLevelGrammar,
    /// The parameter that asks for it.
    param: &'static str,
}

impl Wanted {
    /// The texts that are JSON of this schema.
    pub(crate) fn schema(mut schema: Value, param: &'static str) -> Wanted {
        one_layout(&mut schema);
        let grammar = TopLevelGrammar::from_json_schema(schema);
        Wanted { on_trial: grammar.clone(), grammar, param }
    }

    /// The texts of a grammar in llguidance's dialect of Lark, which may name tokens of the vocabulary, and
    /// the same grammar with their texts.
    pub(crate) fn lark([lark, on_trial]: [String; 2], param: &'static str) -> Wanted {
        let [grammar, on_trial] = [lark, on_trial].map(TopLevelGrammar::from_lark);
        Wanted { grammar, on_trial, param }
    }
}

/// Makes a schema's texts differ in their values alone, not in blanks: a model that may write blanks
/// may write nothing else.
pub(crate) fn one_layout(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        let layout =
            json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        schema.entry("x-guidance").or_insert(layout);
    }
}

/// Makes grammars over one model's vocabulary, which is prepared when the first is asked for.
pub(crate) struct Grammars {
    vocabulary: OnceLock<Result<Vocabulary, String>>,
    trial: Option<Trial>,
    turns: Turns,
    memory: Arc<Memory>,
}

struct Vocabulary {
    factory: ParserFactory,
    ends: Arc<[u32]>,
}

impl Grammars {
    /// Grammars that hold at most `memory` bytes together; `None` where nothing compiles any.
    pub(crate) fn new(compiler: GrammarCompiler, memory: usize) -> Option<Arc<Grammars>> {
        let trial = match compiler {
            GrammarCompiler::None => return None,
            GrammarCompiler::InProcess => None,
            GrammarCompiler::Process(process) => Some(Trial::new(process)),
        };
        let turns = Turns::new(trial.as_ref().map_or(1, Trial::places));
        let memory = Arc::new(Memory::new(memory));
        Some(Arc::new(Grammars { vocabulary: OnceLock::new(), trial, turns, memory }))
    }

    /// Compiles what a request wants for each of its `texts`, as long as `waited_for` holds.
    ///
    /// # Errors
    /// A schema that is none, that asks for what cannot be enforced, or that takes more than it may.
    pub(crate) async fn compile(
        app: &Arc<App>,
        caller: &Caller,
        wanted: Wanted,
        texts: usize,
        waited_for: impl Fn() -> bool + Send + 'static,
    ) -> Result<Grammar, ApiError> {
        let Some(grammars) = &app.grammars else {
            let message =
                "this server compiles no grammars: its program names no `GrammarCompiler`";
            return Err(ApiError::bad_request("schemas_unsupported", message).of(wanted.param));
        };
        let patience = app.options.limits.request_timeout;
        let turn = grammars.turns.take(&caller.client, caller.until).await;
        let turn = turn?.ok_or_else(|| ApiError::timeout(patience))?;
        let (grammars, client) = (Arc::clone(grammars), Arc::clone(&caller.client));
        let shared = Arc::clone(app);
        // The turn ends with the work, which goes on for a moment where nobody waits for it any more.
        app.aside(move || {
            let app = shared;
            let _turn = turn;
            let Grammars { trial, memory, .. } = &*grammars;
            let Wanted { grammar, on_trial, param } = wanted;
            let refuse = |refusal: Refusal| refusal.to_api(param);
            if let Some(trial) = trial {
                let size = trial.size(&on_trial, param, patience, &waited_for)?;
                fits(size, texts, memory).map_err(refuse)?;
            }
            let vocabulary = grammars.vocabulary.get_or_init(|| vocabulary(app.engine.model()));
            let vocabulary = vocabulary.as_ref();
            let Vocabulary { factory, ends } =
                vocabulary.map_err(|reason| ApiError::internal(reason.clone()))?;
            let start = trial::compile(factory, grammar).map_err(refuse)?;
            let size = Size::of(&start);
            fits(size, texts, memory).map_err(refuse)?;
            let symbols = Held::take(memory, &client, size.symbols.saturating_mul(SYMBOL));
            let symbols = Arc::new(symbols.ok_or_else(ApiError::grammar_memory)?);
            Ok(Grammar { start, size, ends: Arc::clone(ends), symbols })
        })
        .await
    }
}

/// Whether a request may have a grammar of this size for so many texts.
fn fits(size: Size, texts: usize, memory: &Memory) -> Result<(), Refusal> {
    let texts = size.state.saturating_mul(texts);
    let all = size.symbols.saturating_mul(SYMBOL).saturating_add(texts);
    let (most, of) = match size.state > MAX_STATE {
        true => (MAX_STATE, size.state),
        false => (memory.most_of_client(), all),
    };
    if of <= most {
        return Ok(());
    }
    let (most, of) = (most >> 20, of >> 20);
    let reason = format!("it takes {of} MiB and may take {most}; make it smaller");
    Err(Refusal::TooComplex(reason))
}

/// Who compiles when: one grammar of each client at a time, and so many of all of them.
struct Turns {
    /// By the name of the key. Without keys, everybody is one client without a name.
    clients: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

impl Turns {
    fn new(all: usize) -> Turns {
        Turns { clients: Mutex::default(), all: Arc::new(Semaphore::new(all)) }
    }

    /// The place of a client. There are no more of them than the operator has given names to keys.
    fn of(&self, client: &Arc<str>) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let one = || Arc::new(Semaphore::new(1));
        Arc::clone(clients.entry(Arc::clone(client)).or_insert_with(one))
    }

    /// Waits for a turn of this client's; `None` where there was none in time.
    async fn take(
        &self,
        client: &Arc<str>,
        until: Instant,
    ) -> Result<Option<[OwnedSemaphorePermit; 2]>, ApiError> {
        let client = self.of(client);
        let turn = async {
            let own = client.acquire_owned().await?;
            Ok([own, Arc::clone(&self.all).acquire_owned().await?])
        };
        let Ok(turn) = tokio::time::timeout_at(until.into(), turn).await else { return Ok(None) };
        let closed = |closed: tokio::sync::AcquireError| ApiError::internal(closed.to_string());
        turn.map(Some).map_err(closed)
    }
}

fn vocabulary(model: &Model) -> Result<Vocabulary, String> {
    let tokenizer: &Tokenizer = model.tokenizer();
    let size = u32::try_from(model.vocab()).map_err(|error| error.to_string())?;
    let ends: Arc<[u32]> = (0..size).filter(|&token| tokenizer.is_eog(token)).collect();
    let end = tokenizer.eos().or(ends.first().copied());
    let end = end.ok_or("the model has no token that ends a text, which a grammar needs")?;
    let words: Vec<Vec<u8>> = (0..size).map(|token| word(tokenizer, token)).collect();
    let trie = TokTrie::from(&TokRxInfo::new(size, end), &words);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
    factory.quiet();
    *factory.limits_mut() = trial::limits();
    Ok(Vocabulary { factory, ends })
}

/// The bytes of a token; those of control tokens, which are no text, marked.
fn word(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    if !bytes.is_empty() && (tokenizer.is_special(token) || tokenizer.is_eog(token)) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], &*bytes].concat();
    }
    bytes.into_owned()
}

/// A grammar, ready to constrain any number of texts.
pub(crate) struct Grammar {
    start: TokenParser,
    size: Size,
    ends: Arc<[u32]>,
    symbols: Arc<Held>,
}

impl Grammar {
    /// A constraint on one text, from its beginning.
    ///
    /// # Errors
    /// Where grammars hold as much memory as they may.
    pub(crate) fn constraint(&self) -> Result<GrammarConstraint, ApiError> {
        let symbols = Arc::clone(&self.symbols);
        let state = symbols.beside(self.size.state).ok_or_else(ApiError::grammar_memory)?;
        let (parser, ends) = (self.start.deep_clone(), Arc::clone(&self.ends));
        let copied = self.size.copied;
        Ok(GrammarConstraint { parser, copied, ends, items: 0, state, _symbols: symbols })
    }
}

/// A grammar's state within one text.
pub(crate) struct GrammarConstraint {
    parser: TokenParser,
    /// [`Size::copied`] of its grammar.
    copied: usize,
    ends: Arc<[u32]>,
    /// Items in the parser's rows.
    items: usize,
    state: Held,
    _symbols: Arc<Held>,
}

impl GrammarConstraint {
    /// Counts what the parser takes by now.
    fn count(&mut self) -> Result<(), String> {
        let lexer = lexer_bytes(&self.parser.parser.lexer_stats());
        let items = self.items.saturating_mul(ITEM);
        let bytes = self.copied.saturating_add(lexer).saturating_add(items);
        if bytes > MAX_STATE {
            let most = MAX_STATE >> 20;
            return Err(format!("the grammar takes more than {most} MiB by here; make it smaller"));
        }
        match self.state.grow(bytes) {
            true => Ok(()),
            false => Err(FULL.to_owned()),
        }
    }
}

impl TokenConstraint for GrammarConstraint {
    fn mask(&mut self, allowed: &mut TokenMask) -> Result<(), String> {
        let parser = &mut self.parser;
        let words = panic_utils::catch_unwind(AssertUnwindSafe(|| match parser.stop_reason() {
            StopReason::NotStopped => parser.compute_mask(),
            _ => Ok(parser.token_env.tok_trie().eos_token_set()),
        }));
        allowed.copy_words(words.map_err(|error| trial::reason(&error))?.as_slice());
        // The library knows one end of the text, the model may have more.
        if self.ends.iter().any(|&end| allowed.allows(end)) {
            self.ends.iter().for_each(|&end| allowed.allow(end));
        }
        self.count()
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let parser = &mut self.parser;
        let before = parser.parser.stats().all_items;
        let accepted = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            parser.consume_token(token)?;
            parser.check_stop()
        }));
        accepted.map_err(|error| trial::reason(&error))?;
        self.items += parser.parser.stats().all_items.saturating_sub(before);
        self.count()
    }

    fn is_complete(&self) -> bool {
        self.parser.stop_reason().is_ok() && self.parser.stop_reason() != StopReason::NotStopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_may_name_a_control_token() {
        let special = |text: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
        let words = [special("<end>"), special("<｜tool▁sep｜>"), b"f".to_vec(), b"{}".to_vec()];
        let trie = TokTrie::from(&TokRxInfo::new(4, 0), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).unwrap();
        factory.quiet();
        let lark = "start: \"f\" <[1]> args\nargs: %json {\"type\": \"object\"}".to_owned();
        let grammar = TopLevelGrammar::from_lark(lark);
        let mut parser = trial::compile(&factory, grammar).unwrap();
        for token in [2, 1, 3] {
            let mask = parser.compute_mask().unwrap();
            let allowed: Vec<u32> = (0..4).filter(|&token| mask.is_allowed(token)).collect();
            assert_eq!(allowed, [token]);
            parser.consume_token(token).unwrap();
        }
        assert!(parser.check_stop().unwrap());
    }
}
