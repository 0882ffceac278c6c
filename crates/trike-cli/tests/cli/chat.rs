//! Conversations, completions, manual pages, and models by their names on the hub.

use std::{
    io::Write,
    process::{Output, Stdio},
};

use crate::harness::{Trike, text, tiny, utf8};

/// One line per message; the tiny model has no template of its own.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}";

fn talk(trike: &Trike, args: &[&str], lines: &str) -> Output {
    talk_by(trike, TEMPLATE, args, lines)
}

fn talk_by(trike: &Trike, template: &str, args: &[&str], lines: &str) -> Output {
    let template = trike.write("chat.jinja", template);
    let model = tiny();
    let mut all = vec!["chat", "-m", &model, "--temperature", "0", "--chat-template", &template];
    all.extend(args);
    let mut child = trike
        .command(&all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn good(output: Output) -> (String, String) {
    let (stdout, stderr) = (utf8(output.stdout), utf8(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    (stdout, stderr)
}

#[test]
fn an_answer_depends_on_what_was_said_before() {
    let trike = Trike::new();
    let one = good(talk(&trike, &["-n", "12"], "Once upon a time\n"));
    assert!(one.0.len() > 10 && one.0.ends_with('\n'), "{one:?}");
    assert!(one.1.contains("12 tokens"), "{one:?}");
    let (two, _) = good(talk(&trike, &["-n", "12"], "Once upon a time\nAnd then\n/exit\nnever read\n"));
    assert!(two.starts_with(&one.0) && two.len() > one.0.len(), "{two}");
    // After `/clear` the first turn is forgotten; a system prompt is present from the start.
    let (alone, _) = good(talk(&trike, &["-n", "12", "-q"], "And then\n"));
    let (cleared, notes) = good(talk(&trike, &["-n", "12", "-q"], "Once upon a time\n/clear\n\nAnd then\n"));
    assert_eq!(cleared, one.0.clone() + &alone);
    assert_eq!(notes, "");
    assert_ne!(two, one.0.clone() + &alone);
    let (told, _) =
        good(talk(&trike, &["-n", "12", "--system", "Tom has a red ball."], "Once upon a time\n"));
    assert_ne!(told, one.0);
}

#[test]
fn each_answer_ends_with_the_activation_precision() {
    let trike = Trike::new();
    for (more, want) in [(&[][..], "activations int8-token"), (&["--activations", "f32"], "activations f32")]
    {
        let args = [&["-n", "2"], more].concat();
        let (_, notes) = good(talk(&trike, &args, "Once upon a time\nAnd then\n"));
        assert_eq!(notes.matches(&format!(" of 512; {want}; ended by max_tokens)")).count(), 2, "{notes}");
    }
}

#[test]
fn history_is_trimmed_with_a_notice() {
    let trike = Trike::new();
    let lines = "The little dog ran to the park and saw a big red ball on the grass.\n".repeat(24);
    let (_, notes) = good(talk(&trike, &["-n", "8"], &lines));
    assert!(notes.contains("oldest") && notes.contains("dropped"), "{notes}");
    let endless = "a long message ".repeat(300) + "\n";
    let output = talk(&trike, &["-n", "8"], &endless);
    let stderr = utf8(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
}

#[test]
fn what_cannot_be_a_conversation_says_why() {
    let trike = Trike::new();
    let error = trike.fails(1, &["chat", "-m", &tiny()]);
    assert!(error.contains("--chat-template") && error.contains("trike run"), "{error}");
    let broken = trike.write("broken.jinja", "{% for m in messages %}");
    let error = trike.fails(1, &["chat", "-m", &tiny(), "--chat-template", &broken]);
    assert!(error.contains('1'), "the line: {error}");
    trike.fails(1, &["chat", "-m", &tiny(), "--chat-template", "missing.jinja"]);
}

#[test]
fn completions_and_manual_pages() {
    let trike = Trike::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = trike.stdout(&["completions", shell]);
        assert!(script.contains("trike") && script.contains("perplexity"), "{shell}");
    }
    let dir = trike.path("man");
    let pages = trike.stdout(&["man", &dir]);
    for page in ["trike.1", "trike-run.1", "trike-chat.1", "trike-convert.1"] {
        assert!(pages.contains(page), "{pages}");
        let page = std::fs::read_to_string(format!("{dir}/{page}")).expect("a page");
        assert!(page.contains(".TH"), "{page}");
    }
}

#[test]
fn a_model_is_found_in_the_cache_by_its_name() {
    let trike = Trike::new();
    let snapshot = trike.path("cache/models--trike--tiny/snapshots/0123abc");
    std::fs::create_dir_all(trike.path("cache/models--trike--tiny/refs")).expect("a directory");
    std::fs::create_dir_all(trike.path("cache/models--trike--tiny/snapshots")).expect("a directory");
    trike.write("cache/models--trike--tiny/refs/main", "0123abc");
    let copied = text(trike.copy_model(&tiny(), "model"));
    std::fs::rename(copied, &snapshot).expect("it moves");
    let run = |id: &str| {
        let args = ["run", "-m", id, "-p", "Once", "-n", "3", "--temperature", "0"];
        let output = trike.command(&args).env("HF_HUB_CACHE", trike.path("cache")).output();
        output.expect("the command starts")
    };
    for id in ["trike/tiny", "trike/tiny@main", "trike/tiny@0123abc"] {
        let (stdout, _) = good(run(id));
        assert!(stdout.starts_with("Once"), "{stdout}");
    }
    for (id, word) in [("trike/huge", "no folder"), ("trike/tiny@v2", "v2")] {
        let output = run(id);
        let stderr = utf8(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(word) && stderr.contains(id), "{stderr}");
        // The advice depends on the features of this build; the tests are offline.
        let remedy = if cfg!(feature = "hub") { "HF_HUB_OFFLINE is set" } else { "run `hf download trike/" };
        assert!(stderr.contains(remedy), "{stderr}");
    }
}

#[test]
fn slash_commands_change_the_conversation() {
    let trike = Trike::new();
    let file = trike.path("talk.json");
    let first = good(talk(&trike, &["-n", "12", "-q"], "Once upon a time\n")).0;
    // Undo and repeat a message; save and load; a greedy answer is reproducible.
    let second =
        good(talk(&trike, &["-n", "12", "-q"], "Once upon a time\nAnd then\n")).0[first.len()..].to_owned();
    let undone = good(talk(&trike, &["-n", "12", "-q"], "Tom is sad\n/undo\nOnce upon a time\n")).0;
    assert!(undone.ends_with(&first), "{undone}");
    let again = good(talk(&trike, &["-n", "12", "-q"], "Once upon a time\n/regenerate\n")).0;
    assert_eq!(again, first.repeat(2));
    let (saved, notes) = good(talk(&trike, &["-n", "12"], &format!("Once upon a time\n/save {file}\n")));
    assert_eq!(saved, first);
    assert!(notes.contains("2 messages in "), "{notes}");
    // A file of another chat is not replaced without `!`; that of this chat is, saved or loaded.
    let before = std::fs::read_to_string(&file).expect("a file");
    let (_, notes) = good(talk(&trike, &["-n", "2"], &format!("Tom\n/save {file}\n")));
    assert!(notes.contains(&format!("`/save! {file}` replaces it")), "{notes}");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), before);
    let other = trike.write("other.json", "mine");
    let lines =
        format!("Tom\n/save! {other}\nIs\n/save {other}\n/load {file}\n/save {file}\n/clear\n/save {file}\n");
    let (_, notes) = good(talk(&trike, &["-n", "2"], &lines));
    assert_eq!(notes.matches("replaces it").count(), 1, "{notes}");
    assert!(notes.contains("4 messages in ") && std::fs::read_to_string(&file).expect("a file") == before);
    let loaded = good(talk(&trike, &["-n", "12", "-q"], &format!("/load {file}\nAnd then\n"))).0;
    assert_eq!(loaded, second);
    // Parameters; errors are printed to stderr, and the chat continues.
    let (_, notes) = good(talk(
        &trike,
        &["-n", "2"],
        "/params top-k 5\n/params top-k x\n/params height 3\n/save\n/nothing\n",
    ));
    for word in [
        "top-k                5",
        "expected a whole number",
        "height: no such parameter",
        "expected a file name",
        "/nothing: no such command",
    ] {
        assert!(notes.contains(word), "{word} in {notes}");
    }
    let (spaced, _) = good(talk(&trike, &["-n", "3", "-q"], " /nothing\n"));
    assert!(!spaced.is_empty(), "a message");
}

/// Tool calls, their answers, reasoning and content parts are read, rendered and written unchanged.
#[test]
fn a_saved_conversation_has_whole_messages() {
    let trike = Trike::new();
    let template = "{{ bos_token }}{% for t in tools or [] %}{{ t.name }} {% endfor %}{% for m in messages %}\
        {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}\
        {% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}";
    let messages = serde_json::json!([
        {"role": "user", "content": [{"type": "text", "text": "Once upon"}, {"type": "text", "text": " a time"}]},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"what": "a dog", "of": 2}}}]},
        {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "a big dog"},
    ]);
    let whole = serde_json::json!({"messages": messages, "tools": [{"name": "find"}]});
    let (file, copy) = (trike.write("talk.json", whole.to_string()), trike.path("copy.json"));
    let say = |lines: &str| {
        let (lines, notes) = good(talk_by(&trike, template, &["-n", "2", "--json", "-q"], lines));
        let tokens = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["prompt_tokens"].as_u64()
        };
        (lines.lines().map(tokens).collect::<Vec<_>>(), notes)
    };
    say(&format!("/load {file}\n/save {copy}\n"));
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&copy).expect("a file")).expect("JSON");
    assert_eq!(saved.to_string(), whole.to_string());
    // The last message of a tool is answered, and after that answer again.
    let (tokens, notes) = say(&format!("/load {file}\n/regenerate\n/regenerate\n/save! {copy}\n"));
    assert_eq!(notes, "");
    let [first, second] = tokens[..] else { panic!("{tokens:?}") };
    assert_eq!(first, second);
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&copy).expect("a file")).expect("JSON");
    assert_eq!(saved["messages"].as_array().expect("a list").len(), 4);
    assert_eq!(saved["messages"][1].to_string(), messages[1].to_string());
    // Without calls and tools the prompt is a shorter one.
    let plain = serde_json::json!({"messages": [{"role": "user", "content": "Once upon a time"},
        {"role": "tool", "content": "a big dog"}]});
    let plain = trike.write("plain.json", plain.to_string());
    let (tokens, _) = say(&format!("/load {plain}\n/regenerate\n"));
    assert!(tokens[0] < first, "{tokens:?} {first:?}");
    // Invalid conversations are refused with the reason.
    for (text, words) in [
        (
            r#"{"messages": [{"content": "a"}]}"#,
            "expected a saved conversation: a message: expected a `role`",
        ),
        (r#"{"messages": [], "documents": []}"#, "expected a saved conversation: unknown field `documents`"),
        (
            r#"{"messages": [{"role": "user", "content": "a", "audio": "b"}]}"#,
            "message 1: a message: expected role",
        ),
        (
            r#"{"messages": [{"role": "user", "content": null}]}"#,
            "message 1: `content`: expected a text or parts",
        ),
    ] {
        let (_, notes) = say(&format!("/load {}\n", trike.write("wrong.json", text)));
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

#[test]
fn answers_as_lines_of_json() {
    let trike = Trike::new();
    let (lines, notes) = good(talk(&trike, &["-n", "5", "--json"], "Once upon a time\nAnd then\n"));
    assert_eq!(notes, "");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!((&line["tokens"], &line["finish"]), (&5.into(), &"max_tokens".into()), "{line}");
    }
    // The second prompt begins with the first and its answer, which are reused.
    assert!(lines[1]["reused_tokens"].as_u64() > lines[0]["prompt_tokens"].as_u64(), "{lines:?}");
}

#[test]
fn a_chat_samples_unless_told_otherwise_and_survives_bytes() {
    let trike = Trike::new();
    let model = trike.copy_model(&tiny(), "plain");
    std::fs::remove_file(model.join("generation_config.json")).unwrap();
    let model = text(model);
    let say = |input: &'static [u8]| {
        let mut child = trike
            .command(&["chat", &model, "--chat-template", TEMPLATE, "-n", "3", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
        child.wait_with_output().expect("it ends")
    };
    let line = |output: Output| serde_json::from_str::<serde_json::Value>(&good(output).0).expect("JSON");
    let seeds =
        [line(say(b"Once\n")), line(say(b"Once\n"))].map(|line| line["seed"].as_u64().expect("sampled"));
    assert_ne!(seeds[0], seeds[1]);
    let (lines, notes) = good(say(b"caf\xe9\nOnce\n"));
    assert_eq!(lines.lines().count(), 2);
    assert!(notes.contains("not UTF-8"), "{notes}");
}

#[cfg(unix)]
#[test]
fn a_conversation_through_a_terminal() {
    let Some(python) = trike_testkit::python("pty") else { return };
    let trike = Trike::new();
    let template = trike.write("chat.jinja", TEMPLATE);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/terminal.py");
    let run = |lines: &[&str]| {
        let command =
            ["--", env!("CARGO_BIN_EXE_trike"), "chat", "-m", &tiny(), "--temperature", "0", "-n", "12"];
        let output = through_terminal(&python, script, lines, &command, &["--chat-template", &template]);
        (output.status.code(), utf8(output.stdout).replace("\r\n", "\n"), utf8(output.stderr))
    };
    let (code, shown, errors) = run(&["Once upon a time", "And then", "/exit"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(shown.matches("> ").count(), 3, "{shown}");
    assert_eq!(shown.matches("12 tokens").count(), 2, "{shown}");
    // The same text as through a pipe, between the echo of the terminal.
    let (piped, _) = good(talk(&trike, &["-n", "12"], "Once upon a time\nAnd then\n"));
    for answer in piped.trim_end().lines().filter(|line| !line.is_empty()) {
        assert!(shown.contains(answer), "{answer:?} in {shown:?}");
    }
    // The arrow key recalls the last line; a wrong command is an error and is not sent.
    let (code, shown, errors) = run(&["Once upon a time", "/halp", "\x1b[A\x1b[A", "/exit"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(shown.matches("12 tokens").count(), 2, "{shown}");
    assert!(shown.contains("/halp: no such command"), "{shown}");
    // Ctrl-C while waiting for a message exits with the usual code of shells.
    let (code, shown, _) = run(&["Once upon a time", "\x03"]);
    assert_eq!(code, Some(130), "{shown}");
    assert!(shown.contains("12 tokens"), "{shown}");
}

#[cfg(unix)]
fn through_terminal(
    python: &std::process::Command,
    script: &str,
    lines: &[&str],
    command: &[&str],
    more: &[&str],
) -> Output {
    let mut fresh = std::process::Command::new(python.get_program());
    fresh.arg(script).args(lines).args(command).args(more);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRIKE_")) {
        fresh.env_remove(name);
    }
    fresh.output().expect("it starts")
}
