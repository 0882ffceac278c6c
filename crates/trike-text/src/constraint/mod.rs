//! Text of a given form: the tokens that a JSON schema, a grammar or a regular expression allows next.
//!
//! Start from [`Grammar`]. The decision that shaped this module: the parser is [llguidance](https://github.com/guidance-ai/llguidance),
//! which other engines use too, so that a grammar means the same here as there. Only tokens that keep the text a prefix of a valid
//! one are allowed, so the text is valid when it ends by itself; one that ends at a limit may be cut anywhere.
//!
//! * [`Grammar`]: what the text has to be
//! * [`Constraint`]: a grammar with the state of one text
//! * [`ConstraintError`]

use std::sync::Arc;

use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::{Value, json};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Longer tokens are never allowed; no vocabulary has tokens of text of this length.
const MAX_TOKEN: usize = 1024;
/// White space between the parts of a JSON text: a space, or a new line with its indentation. A weak model would otherwise never
/// leave it.
const WHITE_SPACE: &str = r"\x20|\x0A[\x20\x09]{0,32}";

/// What a text has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON text that a schema describes, as JSON; `{}` describes every JSON text.
    JsonSchema(String),
    /// A grammar in llguidance's variant of Lark's syntax, with the rule `start`.
    Lark(String),
    /// A regular expression in the syntax of Rust's `regex`, for the whole text.
    Regex(String),
}

/// An invalid grammar, or a text that left it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The grammar cannot be compiled.
    #[error("invalid {kind}: {reason}")]
    Grammar {
        /// `JSON schema`, `grammar` or `regular expression`.
        kind: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// The parser stopped: the grammar is too ambiguous, or a token was not allowed.
    #[error("the grammar cannot be followed: {reason}")]
    Parser {
        /// What happened.
        reason: String,
    },
    /// The tokenizer has a token that cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Grammar {
    fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "JSON schema",
            Self::Lark(_) => "grammar",
            Self::Regex(_) => "regular expression",
        }
    }

    fn compile(&self) -> Result<TopLevelGrammar, String> {
        Ok(match self {
            Self::JsonSchema(schema) => {
                let mut schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
                if let Some(schema) = schema.as_object_mut() {
                    schema
                        .entry("x-guidance")
                        .or_insert_with(|| json!({ "whitespace_pattern": WHITE_SPACE }));
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            Self::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Self::Regex(expression) => TopLevelGrammar::from_regex(expression),
        })
    }
}

/// A grammar with the state of one text.
///
/// ```
/// use trike_text::{constraint::{Constraint, Grammar}, tokenizer::Tokenizer};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let tokenizer = Tokenizer::open(path)?;
/// let mut constraint = Constraint::new(&Grammar::Regex("yes|no".to_owned()), &tokenizer, tokenizer.eos())?;
/// let mut logits = vec![0.0; tokenizer.vocab_size()];
/// constraint.mask(&mut logits)?;
/// let x = tokenizer.encode("x", false)?[0];
/// assert_eq!(logits[x as usize], f32::NEG_INFINITY, "no answer starts with it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    /// The tokens that end a text; the parser knows the first one only.
    ends: Vec<u32>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Constraint {
    /// A constraint on a text of this tokenizer's tokens, at its start. Each token of `ends` may end a text that the grammar
    /// accepts.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Grammar`].
    pub fn new(grammar: &Grammar, tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, ConstraintError> {
        let failed = |reason: String| ConstraintError::Grammar { kind: grammar.kind(), reason };
        let top = grammar.compile().map_err(failed)?;
        let failed = |error: &dyn std::fmt::Display| failed(short(&error.to_string()));
        let mut factory =
            ParserFactory::new_simple(&environment(tokenizer, ends)?).map_err(|error| failed(&error))?;
        // Errors are returned, not printed.
        factory.set_stderr_log_level(0);
        let parser = factory.create_parser(top).map_err(|error| failed(&error))?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(reason) = matcher.get_error() {
            return Err(failed(&reason));
        }
        // Some errors are found only when the first tokens are asked for.
        matcher.compute_mask_or_eos().map_err(|error| failed(&error))?;
        Ok(Self { matcher, ends: ends.to_vec() })
    }

    /// Sets the logits of tokens that may not come next to negative infinity.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Parser`].
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| parser(&error))?;
        let may_end = self.ends.first().is_some_and(|&end| allowed.is_allowed(end));
        for (id, logit) in logits.iter_mut().enumerate() {
            // Ids are `u32` by contract.
            let id = id as u32;
            let ends = self.ends.contains(&id);
            if (ends && !may_end) || (!ends && !allowed.is_allowed(id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Adds an allowed token that is not an end to the text; whether the text is complete, so that nothing may follow.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Parser`] for a token that is not allowed.
    pub fn accept(&mut self, id: u32) -> Result<bool, ConstraintError> {
        self.matcher.consume_token(id).map_err(|error| parser(&error))?;
        Ok(self.matcher.is_stopped())
    }
}

fn parser(error: &dyn std::fmt::Display) -> ConstraintError {
    ConstraintError::Parser { reason: short(&error.to_string()) }
}

/// An error without the parser's state, which is for its developers.
fn short(reason: &str) -> String {
    let end = reason.find("<state>").or_else(|| reason.find("<backtrace>")).unwrap_or(reason.len());
    reason[..end].trim().to_owned()
}

/// The tokens as the parser wants them: bytes, and names of special tokens after a byte that no text has.
fn environment(tokenizer: &Tokenizer, ends: &[u32]) -> Result<TokEnv, ConstraintError> {
    let count = tokenizer.vocab_size() as u32;
    let mut words = Vec::with_capacity(count as usize + 1);
    for id in 0..count {
        let bytes = tokenizer.token_bytes(id)?;
        words.push(if bytes.len() > MAX_TOKEN { Vec::new() } else { bytes.to_vec() });
    }
    let special = |name: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
    for (name, id) in tokenizer.special_tokens() {
        if let Some(word) = words.get_mut(id as usize) {
            *word = special(name);
        }
    }
    // A tokenizer without an end gets one that no model can choose.
    let end = ends.first().copied().filter(|&end| end < count).unwrap_or_else(|| {
        words.push(special("<end>"));
        count
    });
    let info = TokRxInfo::new(words.len() as u32, end);
    Ok(Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words))))
}

#[cfg(test)]
mod tests;
