//! Malicious or broken hubs: each is an error, and leaves no apparent model in the cache.

use super::{Hub, cache, files, nothing_looks_complete, plain_text, size_of, usual};
use crate::{
    harness::{Trike, tiny},
    hub_server::{COMMIT, Reply, Repository, Request},
};

/// A response that replaces the usual one, if given.
type Instead = fn(&Request) -> Option<Reply>;

fn listing(body: impl Into<Vec<u8>>, request: &Request) -> Option<Reply> {
    request.path.starts_with("/api/").then(|| Reply::new(200, body))
}

fn names(list: &str, request: &Request) -> Option<Reply> {
    listing(format!(r#"{{"sha": "{COMMIT}", "siblings": [{list}]}}"#), request)
}

fn header(file: &str, name: &'static str, value: &str, request: &Request) -> Option<Reply> {
    request.is("HEAD", file).then(|| {
        let reply = Reply::new(200, "").with("ETag", "\"an-etag\"");
        let mut reply = Reply { length: Some("10".to_owned()), ..reply };
        match name {
            "content-length" => reply.length = Some(value.to_owned()),
            _ => reply = reply.with(name, value),
        }
        reply
    })
}

#[test]
fn a_hostile_hub_writes_nothing_that_has_a_name() {
    let cases: &[(&str, Instead, Instead, &str)] = &[
        ("no JSON", |r| listing("<html>\u{1b}[2J", r), usual, "a model description"),
        ("endless listing", |r| listing(vec![b' '; (16 << 20) + 2], r), usual, "at most 16777216"),
        ("commit", |r| listing(r#"{"sha": "../../../../evil", "siblings": []}"#, r), usual, "the commit"),
        ("no files", |r| names("", r), usual, "no files"),
        ("up", |r| names(r#"{"rfilename": "../../../evil.gguf"}"#, r), usual, "outside the repository"),
        ("root", |r| names(r#"{"rfilename": "/tmp/evil.gguf"}"#, r), usual, "outside the repository"),
        ("steering", |r| names(r#"{"rfilename": "\u001b[2J"}"#, r), usual, "neither config.json"),
        ("etag", |r| header("config.json", "X-Linked-Etag", "\"../../../../evil\"", r), usual, "an ETag"),
        ("hidden", |r| header("config.json", "X-Linked-Etag", "\"..\"", r), usual, "an ETag"),
        ("no size", |r| header("config.json", "content-length", "", r), usual, "size of the file"),
        ("odd size", |r| header("config.json", "X-Linked-Size", "-1", r), usual, "size of the file"),
        ("huge", |r| header("config.json", "X-Linked-Size", "99999999999999", r), usual, "at most 268435456"),
        ("too small", |r| header("config.json", "X-Linked-Size", "5", r), usual, "expected 5 bytes"),
        (
            "endless body",
            usual,
            |_| Some(Reply { length: Some(String::new()), ..Reply::new(200, vec![0; 2 << 20]) }),
            "bytes, got more",
        ),
        (
            "digest",
            usual,
            |_| Some(Reply::new(200, vec![0; size_of("model.safetensors")])),
            "expected SHA-256",
        ),
        (
            "small digest",
            |r| {
                r.is("GET", "tokenizer_config.json")
                    .then(|| Reply::new(200, vec![b' '; size_of("tokenizer_config.json")]))
            },
            usual,
            "expected git SHA-1",
        ),
        (
            "loop",
            |r| Some(Reply::new(302, "").with("Location", r.path.clone())),
            usual,
            "at most 6 redirects",
        ),
        ("file", |_| Some(Reply::new(302, "").with("Location", "file:///etc/passwd")), usual, "redirect"),
        ("relative", |_| Some(Reply::new(302, "").with("Location", "x")), usual, "redirect"),
        ("partial", usual, |_| Some(Reply::new(206, "x")), "the bytes from 0"),
    ];
    for (what, main, cdn, word) in cases {
        let (trike, hub) = (Trike::new(), Hub::with(Repository::of(&tiny()), *main, *cdn));
        let error = hub.fails(&trike, "trike/tiny");
        assert!(error.contains(word), "{what}: {error}");
        nothing_looks_complete(&trike);
        assert!(!files(&cache(&trike)).iter().any(|file| file.ends_with(".incomplete")), "{what}");
    }
}

#[test]
fn shards_are_those_of_the_index_and_of_the_listing() {
    let mut files = Repository::of(&tiny());
    let weights = files.files.remove("model.safetensors").unwrap();
    let index = "model.safetensors.index.json".to_owned();
    let indexed = |files: &Repository, map: &str| {
        let mut files = files.clone();
        files.files.insert(index.clone(), format!(r#"{{"weight_map": {map}}}"#).into_bytes());
        Hub::of(files)
    };
    files.files.insert("consolidated.safetensors".to_owned(), weights.clone());
    for (map, word) in [
        (r#"{"x": "../../../../evil.safetensors"}"#, "names of .safetensors files"),
        (r#"{"x": "model-00001-of-00001.safetensors"}"#, "no file model-00001-of-00001.safetensors"),
        ("3", "weight_map"),
    ] {
        let (trike, hub) = (Trike::new(), indexed(&files, map));
        let error = hub.fails(&trike, "trike/tiny");
        assert!(error.contains(word), "{error}");
        nothing_looks_complete(&trike);
    }
    // The index must give every tensor; its names are those in the header of the file.
    let len = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + len]).unwrap();
    let names = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
    let shard = "model-00001-of-00001.safetensors";
    let map: serde_json::Map<_, _> = names.map(|name| (name.clone(), shard.into())).collect();
    files.files.insert(shard.to_owned(), weights);
    let (trike, hub) = (Trike::new(), indexed(&files, &serde_json::Value::Object(map).to_string()));
    assert_eq!(hub.text(&trike, "trike/tiny"), plain_text());
    assert_eq!(hub.cdn.asked().len(), 1, "not the file that the index does not name");
}
