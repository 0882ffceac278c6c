//! Access to downloads: tokens, refusals, no network.

use std::process::Command;

use super::{Hub, nothing_looks_complete};
use crate::{
    harness::{Trike, tiny, utf8},
    hub_server::{Reply, Repository, Request},
};

#[test]
fn tokens_come_from_the_environment_or_from_logging_in() {
    let hub = Hub::of(Repository::default());
    let sent = |set: &dyn Fn(&Trike, &mut Command)| {
        let trike = Trike::new();
        let mut command = hub.command(&trike, "trike/tiny");
        command.env_remove("HF_TOKEN");
        std::fs::create_dir(trike.path("hf")).unwrap();
        set(&trike, &mut command);
        let error = utf8(command.output().unwrap().stderr);
        assert!(!error.contains("hf_"), "{error}");
        (hub.main.asked().last().unwrap().header("authorization").map(str::to_owned), error)
    };
    let login = |trike: &Trike| drop(trike.write("hf/token", "hf_stored\n"));
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    assert_eq!(sent(&|_, _| ()).0, None);
    assert_eq!(sent(&|trike, _| login(trike)).0, bearer("hf_stored"));
    let both = |trike: &Trike, command: &mut Command| {
        login(trike);
        command.env("HF_TOKEN", " hf_named ");
    };
    assert_eq!(sent(&both).0, bearer("hf_named"));
    let none = |trike: &Trike, command: &mut Command| {
        login(trike);
        command.env("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
    };
    assert_eq!(sent(&none).0, None);
    let elsewhere = |trike: &Trike, command: &mut Command| {
        command.env("HF_TOKEN_PATH", trike.write("other", "hf_other"));
    };
    assert_eq!(sent(&elsewhere).0, bearer("hf_other"));
    let before = hub.asked();
    let broken = |_: &Trike, command: &mut Command| {
        command.env("HF_TOKEN", "hf_a\r\nX: b");
    };
    assert!(sent(&broken).1.contains("token from HF_TOKEN"));
    assert_eq!(hub.asked(), before);
}

#[test]
fn refusals_say_what_to_do() {
    let cases: [(u16, &str, &str, &[&str]); 8] = [
        (401, "GatedRepo", "hf_x", &["gated", "accept its terms", "/trike/tiny", "HF_TOKEN"]),
        (403, "GatedRepo", "", &["gated", "accept its terms"]),
        (401, "RepoNotFound", "", &["no such model, or it is private (401", "set HF_TOKEN"]),
        (401, "", "hf_x", &["the token that was sent", "is invalid or has no read access"]),
        (404, "RepoNotFound", "hf_x", &["no such model", "404"]),
        (404, "RevisionNotFound", "", &["no revision `v9`", "branch"]),
        (403, "", "", &["access denied (403", "HF_TOKEN"]),
        (429, "", "", &["429 Too Many Requests", "wait"]),
    ];
    for (status, code, token, words) in cases {
        let trike = Trike::new();
        let refuse = move |_: &Request| Some(Reply::new(status, "\u{1b}[2J").with("X-Error-Code", code));
        let hub = Hub::with(Repository::default(), refuse, |_| None);
        let output = hub.command(&trike, "trike/tiny@v9").env("HF_TOKEN", token).output().unwrap();
        let error = utf8(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        for word in words {
            assert!(error.contains(word) && !error.contains('\u{1b}'), "{status} {code}: {error}");
        }
        assert_eq!(hub.asked(), 1, "asked once: {error}");
    }
    // The listing of a gated model is public, its files are not.
    let gated = |request: &Request| {
        (request.method == "HEAD").then(|| Reply::new(403, "").with("X-Error-Code", "GatedRepo"))
    };
    let (trike, hub) = (Trike::new(), Hub::with(Repository::of(&tiny()), gated, |_| None));
    assert!(hub.fails(&trike, "trike/tiny").contains("trike/tiny is gated"));
    nothing_looks_complete(&trike);
    let offline = hub.command(&trike, "trike/tiny").env("HF_HUB_OFFLINE", "1").output().unwrap();
    let error = utf8(offline.stderr);
    assert!(error.contains("HF_HUB_OFFLINE is set: unset it to download the model"), "{error}");
    let nobody = hub.command(&trike, "trike/tiny").env("HF_ENDPOINT", "http://127.0.0.1:1").output().unwrap();
    let error = utf8(nobody.stderr);
    assert!(error.contains("http://127.0.0.1:1/api") && error.contains("check the connection"), "{error}");
    let nowhere = hub.command(&trike, "trike/tiny").env("HF_ENDPOINT", "ftp://hub").output().unwrap();
    assert!(utf8(nowhere.stderr).contains("HF_ENDPOINT"));
}
