//! Keys and values of records: keys without effect, and names of value types for messages.

use serde_json::{Map, Value};

/// Metadata keys of records and messages, such as source and rating: the data sets of the hub have them, and no trainer reads them.
/// Sorted. The page of `trike train` has this list.
#[rustfmt::skip]
pub(super) const WITHOUT_EFFECT: &[&str] = &[
    "_id", "added", "annotator", "author", "authors", "avatarUrl", "avatar_url", "book", "categories",
    "category", "char_count", "content_hash", "conversation_hash", "conversation_id", "country", "created",
    "created_at", "data_source", "dataset", "dataset_name", "date", "difficulty", "doc_id", "document_id",
    "domain", "dump", "embedding", "embeddings", "extra", "file_name", "file_path", "filename",
    "generated_by", "generator", "guid", "hash", "hashed_ip", "header", "id", "idx", "index", "info",
    "instruction_id", "int_score", "key", "lang", "language", "language_probability", "language_score", "len",
    "length", "license", "likes", "line_number", "link", "locale", "md5", "message_id", "message_tree_id",
    "meta", "metadata", "minhash", "model", "model_name", "moderation", "n_tokens", "num_tokens", "num_turns",
    "num_words", "openai_moderation", "origin", "original_index", "parent_id", "path", "perplexity",
    "pile_set_name", "prompt_id", "provenance", "published", "quality", "quality_score", "question_id",
    "rank", "rating", "ratings", "red_pajama_subset", "redacted", "repo", "repo_name", "review_count",
    "row_id", "row_index", "sample_id", "score", "scores", "sha1", "sha256", "size", "source", "source_id",
    "source_type", "sources", "split", "state", "subject", "subset", "synthetic", "tag", "tags", "task",
    "task_id", "task_name", "task_type", "time", "timestamp", "title", "token_count", "topic", "topics",
    "toxic", "toxicity", "turn", "turn_identifier", "turns", "upvotes", "uri", "url", "user_id", "uuid",
    "version", "views", "warc_path", "word_count", "year",
];

/// Whether a key is in [`WITHOUT_EFFECT`].
pub(super) fn is_without_effect(key: &str) -> bool {
    WITHOUT_EFFECT.binary_search(&key).is_ok()
}

/// Whether a value is `null`, or an empty string, list or object.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Refuses keys that are neither `known` nor without effect; `whose` names their owner, such as "message 2".
pub(super) fn check(object: &Map<String, Value>, known: &[&str], whose: &str) -> Result<(), String> {
    for (key, value) in object {
        if known.contains(&key.as_str()) || is_empty(value) || is_without_effect(key) {
            continue;
        }
        return Err(format!(
            "{whose} has the key `{key}`, which may affect training and is not supported: expected {} and keys without \
             effect, such as id and source",
            known.join(", ")
        ));
    }
    Ok(())
}

/// The string value of a key, which the error names.
pub(super) fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("`{key}` is {}: expected a string", kind(value)))
}

/// The type of a value, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted() {
        assert!(WITHOUT_EFFECT.is_sorted());
        for key in ["weight", "train", "training", "loss", "system", "tools", "role", "text", "history"] {
            assert!(!is_without_effect(key), "{key}");
        }
    }
}
