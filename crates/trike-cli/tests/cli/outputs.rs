//! Outputs of commands: over existing files, concurrently, on a full disk; and models truncated during use.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
};

use crate::harness::{Trike, tiny, utf8};

const NPY: &[u8] = b"\x93NUMPY\x01\x00";

fn names(dir: &str) -> Vec<String> {
    let entries = Path::new(dir).read_dir().expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

#[test]
fn an_output_goes_where_its_path_leads() {
    let (trike, model) = (Trike::new(), tiny());
    let dir = trike.path("out");
    fs::create_dir(&dir).unwrap();
    let at = |name: &str| format!("{dir}/{name}");
    for command in [&["logits", "-m", &model, "--ids", "1,2"][..], &["embed", &model, "Once"][..]] {
        let write = |path: &str| trike.stdout(&[command, &["-q", "-o", path]].concat());
        // A file with its own permissions, the temporary name of earlier versions, a link, and a dangling link.
        fs::write(at("old"), "old").unwrap();
        fs::set_permissions(at("old"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(at("old.partial"), "mine").unwrap();
        symlink("real", at("link")).unwrap();
        fs::write(at("real"), "old").unwrap();
        symlink("made", at("dangling")).unwrap();
        for (path, real) in [("old", "old"), ("link", "real"), ("dangling", "made")] {
            write(&at(path));
            assert!(fs::read(at(real)).unwrap().starts_with(NPY), "{command:?} {path}");
            let is_link = Path::new(&at(path)).symlink_metadata().unwrap().is_symlink();
            assert_eq!(is_link, path != real, "{command:?} {path}");
        }
        assert_eq!(Path::new(&at("old")).metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read(at("old.partial")).unwrap(), b"mine");
        // A pipe remains a pipe, and its reader receives the bytes; so does the reader of stdout.
        pipe(&at("pipe"));
        let reader = std::thread::spawn({
            let path = at("pipe");
            move || fs::read(path)
        });
        write(&at("pipe"));
        let whole = fs::read(at("old")).unwrap();
        assert!(reader.join().unwrap().unwrap() == whole, "{command:?}");
        assert!(Path::new(&at("pipe")).metadata().unwrap().file_type().is_fifo());
        let shown = trike.output(&[command, &["-q", "-o", "/dev/stdout"]].concat());
        assert!(shown.status.success() && shown.stdout.starts_with(&whole), "{command:?}");
        let error = trike.fails(1, &[command, &["-o", &dir]].concat());
        assert!(error.contains(&dir), "{error}");
        // A full disk: no file can grow.
        let line = format!("ulimit -f 0; trap '' XFSZ; trike {} -q -o {}", command.join(" "), at("old"));
        let full = trike.shell(&line).output().unwrap();
        assert_eq!(full.status.code(), Some(1), "{}", utf8(full.stderr.clone()));
        assert!(utf8(full.stderr).contains("make room there"));
        assert!(fs::read(at("old")).unwrap() == whole, "the old file stays");
        let all = ["dangling", "link", "made", "old", "old.partial", "pipe", "real"];
        assert_eq!(names(&dir), all, "nothing else is left");
        all.iter().for_each(|name| fs::remove_file(at(name)).unwrap());
    }
}

#[test]
fn what_must_not_exist_is_refused_and_left_as_it_is() {
    let trike = Trike::new();
    let [model, _] = trike.storyteller();
    let text = trike.write("text.txt", "Once upon a time there was a sea. ".repeat(20));
    let dir = trike.path("out");
    fs::create_dir(&dir).unwrap();
    let at = |name: &str| format!("{dir}/{name}");
    pipe(&at("pipe"));
    pipe(&at("pipe.gguf"));
    fs::write(at("file"), "mine").unwrap();
    symlink("file", at("link")).unwrap();
    let all = names(&dir);
    let quantize = ["quantize", "-m", &model, "-c", &text];
    for path in ["pipe", "file", "link", "pipe.gguf"] {
        let path = at(path);
        for args in [
            vec!["convert", &model, &path, "--to", "f16"],
            [&quantize[..], &["-o", &path]].concat(),
            [&quantize[..], &["-o", &path, "--target", "3bpw"]].concat(),
            [&quantize[..], &["-o", &path, "--target", "3bpw", "--plan-only"]].concat(),
        ] {
            let error = trike.fails(1, &args);
            assert!(error.contains("exists") && error.contains(&path), "{args:?}: {error}");
        }
    }
    assert_eq!(names(&dir), all);
    assert!(Path::new(&at("pipe")).metadata().unwrap().file_type().is_fifo());
    assert_eq!(fs::read(at("file")).unwrap(), b"mine");
}

#[test]
fn a_link_to_nothing_stays_where_a_model_is_written() {
    let trike = Trike::new();
    for (link, real, to) in [("link", "model", "trike"), ("link.gguf", "model.gguf", "tq2_0")] {
        symlink(real, trike.path(link)).unwrap();
        trike.stdout(&["convert", &tiny(), &trike.path(link), "--to", to]);
        assert!(Path::new(&trike.path(link)).symlink_metadata().unwrap().is_symlink(), "{link}");
        assert!(!Path::new(&trike.path(real)).symlink_metadata().unwrap().is_symlink(), "{real}");
        assert!(trike.stdout(&["run", &trike.path(real), "Once", "-n", "2", "--temperature", "0"]).len() > 4);
    }
}

#[test]
fn the_second_of_two_runs_says_who_has_the_first() {
    let trike = Trike::new();
    let (npy, cache) = (trike.path("a.npy"), trike.path("cache.bin"));
    let model = crate::harness::text(trike.copy_model(&tiny(), "model"));
    let locks = [&npy, &cache, &model].map(|path| trike::format::Lock::new(path.as_ref()).unwrap());
    let undo = ["edit", &model, "--undo"];
    let cases = [
        vec!["logits", "-m", &model, "--ids", "1", "-o", &npy],
        vec!["embed", &model, "Once", "-o", &npy],
        vec!["run", &model, "Once", "-n", "1", "--prompt-cache", &cache],
        undo.to_vec(),
    ];
    for args in &cases {
        let error = trike.fails(1, args);
        let who = format!("another process is writing it (process {})", std::process::id());
        assert!(error.contains(&who), "{args:?}: {error}");
    }
    drop(locks);
    for args in &cases[..3] {
        trike.stdout(args);
    }
    assert!(trike.fails(2, &undo).contains("undo"), "there is no edit");
}

#[test]
fn a_model_that_is_truncated_while_it_is_used_ends_with_a_sentence() {
    let trike = Trike::new();
    let packed = trike.path("packed");
    trike.stdout(&["convert", &tiny(), &packed, "--to", "trike", "--packed", "-q"]);
    let mut child = trike
        .command(&["chat", &packed, "--json", "-n", "2", "--chat-template", "{{ messages[0].content }}"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdin.write_all(b"Once\n").unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("answer"), "{line}");
    let file = format!("{packed}/model.safetensors");
    fs::File::options().write(true).open(&file).unwrap().set_len(4096).unwrap();
    // The process may exit before it has read the message.
    let _ = stdin.write_all(b"And then\n");
    drop(stdin);
    stdout.read_to_string(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = utf8(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&file) && said.contains("another process truncated the file"), "{said}");
}
