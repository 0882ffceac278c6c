//! `trike serve`, as its page of the Guide shows it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Trike, repository};

/// Sends a body in HTTP/1.0, whose answer ends with the connection.
fn post(address: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    serde_json::from_str(answer.split_once("\r\n\r\n").expect("a head").1).expect("JSON")
}

/// The server says what the page shows, answers the page's request, and ends after SIGTERM.
#[test]
fn the_page_of_the_guide_runs() {
    let page = format!("{}/docs/src/guide/serve.md", repository());
    let page = std::fs::read_to_string(page).expect("the page");
    let trike = Trike::new();
    let mut command = trike.command(&["serve", "tiny", "--port", "0"]);
    let mut server = command.stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut lines = BufReader::new(server.stderr.take().expect("stderr")).lines();
    let mut line = || lines.next().expect("a line").expect("UTF-8");
    let loading = line();
    let address = loading.strip_prefix("http://").and_then(|rest| rest.strip_suffix(": loading tiny"));
    let address = address.unwrap_or_else(|| panic!("{loading}")).to_owned();
    let ready = line();
    for said in [loading, ready] {
        let shown = said.replace(&address, "127.0.0.1:8080");
        assert!(page.contains(&shown), "{shown}");
    }
    let curl = page.lines().find(|line| line.starts_with("curl ")).expect("a request");
    let body = curl.split('\'').nth(1).expect("a body");
    let answer = post(&address, "/v1/completions", body);
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    assert_eq!(text, ", there was a little girl named Lily. She loved to play outside in the p");
    let refused =
        post(&address, "/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "Hi"}]}"#);
    assert!(
        refused["error"]["message"].as_str().is_some_and(|why| why.contains("no chat template")),
        "{refused}"
    );
    let told = Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
    assert!(told.expect("a kill").success());
    assert!(server.wait().expect("an end").success());
}

#[test]
fn what_cannot_be_served_is_an_error_before_it_listens() {
    let trike = Trike::new();
    let missing = trike.fails(1, &["serve", "tiny", "--api-key-file", "missing.txt"]);
    assert!(missing.contains("cannot read the keys of missing.txt"), "{missing}");
    let empty = trike.write("empty.txt", "\n\n");
    assert!(trike.fails(1, &["serve", "tiny", "--api-key-file", &empty]).contains("write one per line"));
    let auto = trike.fails(2, &["serve", "tiny", "--kv", "auto"]);
    assert!(auto.contains("one precision for all layers"), "{auto}");
    let long = trike.fails(2, &["serve", "tiny", "--context", "1000000"]);
    assert!(long.contains("context is 1000000") && long.contains("set it with --context"), "{long}");
    let small = trike.fails(2, &["serve", "tiny", "--port", "0", "--kv-memory", "10B", "-q"]);
    assert!(small.contains("memory is 10") && small.contains("set it with --kv-memory"), "{small}");
    let none = trike.fails(2, &["serve", "tiny", "--parallel", "0"]);
    assert!(none.contains("sequences is 0") && none.contains("set it with --parallel"), "{none}");
}
