//! Constrained decoding: the next tokens allowed by a JSON schema, a grammar or a regular expression.
//!
//! Start from [`Grammar`]. The decision that shaped this module: the parser is
//! [llguidance](https://github.com/guidance-ai/llguidance), which other engines use too, so that a grammar has the same meaning as
//! there. Only tokens that keep the text a prefix of a valid one are allowed, so a text that ends by itself is valid; one that hits
//! a length limit may be truncated anywhere.
//!
//! * [`Grammar`]: the constraint on the text
//! * [`GrammarCompiler`]: compiles grammars for a tokenizer
//! * [`Constraint`]: a grammar with the state of one text
//! * [`ConstraintError`]

mod schema;

use std::sync::Arc;

use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::{Value, json};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Longer tokens are never allowed; no vocabulary has text tokens of this length.
const MAX_TOKEN: usize = 1024;
/// White space between the parts of a JSON text: a space, or a line end with indentation. Otherwise a weak model might never leave
/// it.
const WHITE_SPACE: &str = r"\x20|\x0A[\x20\x09]{0,32}";

/// The constraint on a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON text that matches a JSON schema; `{}` allows any JSON text.
    JsonSchema(String),
    /// A grammar in llguidance's variant of Lark's syntax, with the rule `start`.
    Lark(String),
    /// A regular expression in the syntax of Rust's `regex`, for the whole text.
    Regex(String),
}

/// An invalid grammar, or a text that does not follow it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The grammar cannot be compiled.
    #[error("invalid {kind}: {reason}")]
    Grammar {
        /// `JSON schema`, `grammar` or `regular expression`.
        kind: &'static str,
        /// The problem and its location.
        reason: String,
    },
    /// The parser stopped: the grammar is too ambiguous, or a token was not allowed.
    #[error("the grammar cannot be followed: {reason}")]
    Parser {
        /// The parser's reason.
        reason: String,
    },
    /// A token of the tokenizer cannot be read.
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
                let schema = serde_json::from_str(schema).map_err(|error| error.to_string())?;
                TopLevelGrammar::from_json_schema(for_parser(schema))
            }
            Self::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Self::Regex(expression) => TopLevelGrammar::from_regex(expression),
        })
    }
}

/// Compiles grammars for a tokenizer. Clones share what is made of its vocabulary, which takes a fraction of a second for large ones.
///
/// ```
/// use trike_text::{constraint::{Grammar, GrammarCompiler}, tokenizer::Tokenizer};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let tokenizer = Tokenizer::open(path)?;
/// let compiler = GrammarCompiler::new(&tokenizer)?;
/// let mut answer = compiler.compile(&Grammar::Regex("yes|no".to_owned()), tokenizer.eos())?;
/// assert!(answer.accept(tokenizer.encode("x", false)?[0]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    /// The parser's own end token: one after those of the tokenizer, which no model can choose.
    end: u32,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").field("tokens", &self.end).finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// A compiler for grammars of texts in this tokenizer's tokens.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Tokenizer`] and [`ConstraintError::Parser`] for a vocabulary that cannot be read.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, ConstraintError> {
        let (environment, end) = environment(tokenizer)?;
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| parser(&error))?;
        // Errors are returned, not printed.
        factory.set_stderr_log_level(0);
        Ok(Self { factory: Arc::new(factory), end })
    }

    /// A constraint at the start of a text. Each token of `ends` may end a text that the grammar accepts.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Grammar`].
    pub fn compile(&self, grammar: &Grammar, ends: &[u32]) -> Result<Constraint, ConstraintError> {
        let failed = |reason: String| ConstraintError::Grammar { kind: grammar.kind(), reason };
        let top = grammar.compile().map_err(failed)?;
        let failed = |error: &dyn std::fmt::Display| failed(short(&error.to_string()));
        let parser = self.factory.create_parser(top).map_err(|error| failed(&error))?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(reason) = matcher.get_error() {
            return Err(failed(&reason));
        }
        // Some errors are only found when the first mask is computed.
        matcher.compute_mask_or_eos().map_err(|error| failed(&error))?;
        Ok(Constraint { matcher, ends: ends.to_vec(), end: self.end })
    }
}

/// A JSON schema as the parser reads it.
pub(crate) fn for_parser(schema: Value) -> Value {
    let mut schema = schema::in_known_keywords(schema);
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert_with(|| json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
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
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// The parser's own end token, which stands for them.
    end: u32,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Constraint {
    /// A constraint at the start of a text in this tokenizer's tokens. Each token of `ends` may end a text that the grammar
    /// accepts. For many texts, keep a [`GrammarCompiler`].
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Grammar`].
    pub fn new(grammar: &Grammar, tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, ConstraintError> {
        GrammarCompiler::new(tokenizer)?.compile(grammar, ends)
    }

    /// Sets the logits of disallowed tokens to negative infinity.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Parser`].
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| parser(&error))?;
        let may_end = allowed.is_allowed(self.end);
        let ends: Vec<(usize, f32)> =
            self.ends.iter().filter_map(|&id| Some((id as usize, *logits.get(id as usize)?))).collect();
        // By words of the mask: most of them are all ones or all zeros.
        for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(allowed.as_slice()) {
            match *word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    let excluded = logits.iter_mut().enumerate().filter(|(bit, _)| (word >> bit) & 1 == 0);
                    excluded.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
        for (id, logit) in ends {
            logits[id] = if may_end { logit } else { f32::NEG_INFINITY };
        }
        Ok(())
    }

    /// Appends an allowed token other than an end; returns whether the text is complete and nothing may follow.
    ///
    /// # Errors
    ///
    /// [`ConstraintError::Parser`] for a disallowed token.
    pub fn accept(&mut self, id: u32) -> Result<bool, ConstraintError> {
        self.matcher.consume_token(id).map_err(|error| parser(&error))?;
        Ok(self.matcher.is_stopped())
    }
}

fn parser(error: &dyn std::fmt::Display) -> ConstraintError {
    ConstraintError::Parser { reason: short(&error.to_string()) }
}

/// The error without the parser's internal state.
fn short(reason: &str) -> String {
    let end = reason.find("<state>").or_else(|| reason.find("<backtrace>")).unwrap_or(reason.len());
    reason[..end].trim().to_owned()
}

/// The tokens in the parser's format: bytes, and names of special tokens after a byte that does not occur in text. The last token ends
/// a text.
fn environment(tokenizer: &Tokenizer) -> Result<(TokEnv, u32), ConstraintError> {
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
    words.push(special("<end>"));
    let info = TokRxInfo::new(words.len() as u32, count);
    Ok((Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words))), count))
}

#[cfg(test)]
mod tests;
