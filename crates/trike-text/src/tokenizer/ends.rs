//! Tokens that end a turn or a text, identified by name as in llama.cpp.

use super::PieceType;

/// Names of tokens that end a turn or a text.
pub(super) const ENDS: [&str; 23] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
];

/// Names of tokens that end a fill-in-the-middle completion: padding, and separators of files and repositories.
pub(super) const FILL_ENDS: [&str; 11] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Whether a token with this name ends a turn, in a vocabulary described by `has`.
///
/// Two names end a turn in some formats and a part of a turn in others.
pub(super) fn ends_turn(name: &str, has: impl Fn(&str) -> bool) -> bool {
    match name {
        "<|end|>" => {
            let harmony = has("<|return|>") && has("<|call|>");
            !(harmony || (has("<|flush|>") && (has("<|call|>") || has("<|calls|>"))))
        }
        "</s>" => !has("<|tool_response>"),
        _ => ENDS.contains(&name) || FILL_ENDS.contains(&name),
    }
}

/// Corrects the types of tokens that end a turn, since some files declare them as text.
pub(super) fn correct_types(tokens: &[String], types: &mut [PieceType]) {
    let has = |name: &str| tokens.iter().any(|token| token == name);
    for (token, kind) in tokens.iter().zip(types) {
        let named = ENDS.contains(&token.as_str()) || FILL_ENDS.contains(&token.as_str());
        if named && !matches!(kind, PieceType::Control | PieceType::Unused) {
            *kind = if ends_turn(token, has) { PieceType::Control } else { PieceType::UserDefined };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_depends_on_the_other_tokens() {
        let ends = |name: &str, others: &[&str]| ends_turn(name, |other| others.contains(&other));
        assert!(ends("<|end|>", &["<|call|>"]) && ends("</s>", &["<s>"]) && ends("<|im_end|>", &[]));
        assert!(!ends("<|end|>", &["<|call|>", "<|return|>"]) && !ends("</s>", &["<|tool_response>"]));
        assert!(!ends("<|end|>", &["<|calls|>", "<|flush|>"]) && !ends("<s>", &[]));
        let tokens = ["a", "<|im_end|>", "<|file_sep|>"].map(str::to_owned);
        let mut types = [PieceType::Normal; 3];
        correct_types(&tokens, &mut types);
        assert_eq!(types, [PieceType::Normal, PieceType::Control, PieceType::Control]);
    }
}
