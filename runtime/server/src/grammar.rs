//! Structured output: grammars that decide which tokens may follow, by llguidance.

use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{Model, TokenConstraint, TokenMask};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Makes grammars over one model's vocabulary, which is prepared when the first is asked for.
#[derive(Default)]
pub(crate) struct Grammars(OnceLock<Result<Vocabulary, String>>);

struct Vocabulary {
    factory: ParserFactory,
    ends: Arc<[u32]>,
}

/// A grammar, ready to constrain any number of texts.
pub(crate) struct Grammar {
    start: Matcher,
    ends: Arc<[u32]>,
}

impl Grammars {
    /// The texts that are JSON of this schema. `param` is where it came from.
    ///
    /// # Errors
    /// A schema that is none, or that asks for what cannot be enforced.
    pub(crate) fn schema(
        &self,
        model: &Model,
        mut schema: Value,
        param: &str,
    ) -> Result<Grammar, ApiError> {
        one_layout(&mut schema);
        self.grammar(model, TopLevelGrammar::from_json_schema(schema), param)
    }

    /// The texts of a grammar in llguidance's dialect of Lark.
    ///
    /// # Errors
    /// As [`Grammars::schema`].
    pub(crate) fn lark(
        &self,
        model: &Model,
        lark: String,
        param: &str,
    ) -> Result<Grammar, ApiError> {
        self.grammar(model, TopLevelGrammar::from_lark(lark), param)
    }

    fn grammar(
        &self,
        model: &Model,
        grammar: TopLevelGrammar,
        param: &str,
    ) -> Result<Grammar, ApiError> {
        let vocabulary = self.0.get_or_init(|| vocabulary(model)).as_ref();
        let Vocabulary { factory, ends } =
            vocabulary.map_err(|reason| ApiError::internal(reason.clone()))?;
        let mut start = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = start.get_error() {
            let message = format!("`{param}` cannot be enforced: {error}");
            return Err(ApiError::bad_request("invalid_schema", message).of(param));
        }
        // Keywords that are not enforced must not seem to be.
        if let Some(warning) = start.grammar_warnings().first() {
            let message = format!("`{param}` cannot be enforced: {warning}");
            return Err(ApiError::bad_request("unsupported_schema", message).of(param));
        }
        Ok(Grammar { start, ends: Arc::clone(ends) })
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

fn vocabulary(model: &Model) -> Result<Vocabulary, String> {
    let tokenizer: &Tokenizer = model.tokenizer();
    let size = u32::try_from(model.vocab()).map_err(|error| error.to_string())?;
    let ends: Arc<[u32]> = (0..size).filter(|&token| tokenizer.is_eog(token)).collect();
    let end = tokenizer.eos().or(ends.first().copied());
    let end = end.ok_or("the model has no token that ends a text, which a grammar needs")?;
    let words: Vec<Vec<u8>> = (0..size).map(|token| word(tokenizer, token)).collect();
    let trie = TokTrie::from(&TokRxInfo::new(size, end), &words);
    let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
    factory.set_stderr_log_level(0);
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

impl Grammar {
    /// A constraint on one text, from its beginning.
    pub(crate) fn constraint(&self) -> GrammarConstraint {
        GrammarConstraint { matcher: self.start.deep_clone(), ends: Arc::clone(&self.ends) }
    }
}

/// A grammar's state within one text.
pub(crate) struct GrammarConstraint {
    matcher: Matcher,
    ends: Arc<[u32]>,
}

impl TokenConstraint for GrammarConstraint {
    fn mask(&mut self, allowed: &mut TokenMask) -> Result<(), String> {
        let words = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        allowed.copy_words(words.as_slice());
        // The library knows one end of the text, the model may have more.
        if self.ends.iter().any(|&end| allowed.allows(end)) {
            self.ends.iter().for_each(|&end| allowed.allow(end));
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(|error| error.to_string())
    }

    fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}
