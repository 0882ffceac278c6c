//! Models from a hub, which is a server in the test; only with the feature `hub`.

mod access;
mod hostile;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    harness::{Trike, tiny, utf8},
    hub_server::{COMMIT, Reply, Repository, Request, Server, sha256},
};

/// The hub, and its server for large files.
struct Hub {
    main: Server,
    cdn: Server,
}

impl Hub {
    fn of(files: Repository) -> Self {
        Self::with(files, |_| None, |_| None)
    }

    /// A hub whose responses the two functions override.
    fn with(
        mut files: Repository,
        main: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
        cdn: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let large = files.clone();
        let cdn = Server::start(move |request| cdn(request).unwrap_or_else(|| large.large(request)));
        files.cdn.clone_from(&cdn.url);
        let main = Server::start(move |request| main(request).unwrap_or_else(|| files.answer(request)));
        Self { main, cdn }
    }

    fn asked(&self) -> usize {
        self.main.asked().len() + self.cdn.asked().len()
    }

    /// Greedy text of three tokens.
    fn command(&self, trike: &Trike, id: &str) -> Command {
        self.other(trike, &["run", "-m", id, "-p", "Once", "-n", "3", "--temperature", "0"])
    }

    /// Another command, with this hub.
    fn other(&self, trike: &Trike, args: &[&str]) -> Command {
        let mut command = trike.command(args);
        let command_ref =
            command.env("HF_ENDPOINT", &self.main.url).env("HF_HUB_CACHE", trike.path("hf/hub"));
        command_ref
            .env("HF_HOME", trike.path("hf"))
            .env_remove("HF_HUB_OFFLINE")
            .env("HF_TOKEN", "hf_secret");
        command
    }

    fn run(&self, trike: &Trike, id: &str) -> Output {
        self.command(trike, id).output().expect("the command starts")
    }

    #[track_caller]
    fn text(&self, trike: &Trike, id: &str) -> String {
        let output = self.run(trike, id);
        let stderr = utf8(output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "only the closing line: {stderr}");
        utf8(output.stdout)
    }

    #[track_caller]
    fn fails(&self, trike: &Trike, id: &str) -> String {
        let output = self.run(trike, id);
        let stderr = utf8(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(utf8(output.stdout), "");
        let (_, rest) = stderr.split_once('\n').expect("a line");
        let is_topic =
            rest.strip_prefix("more: trike explain ").is_some_and(|topic| topic.lines().count() == 1);
        assert!(stderr.starts_with("error: ") && (rest.is_empty() || is_topic), "{stderr}");
        assert!(!stderr.contains("secret"), "no token and no signature: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains('\u{1b}'), "{stderr}");
        stderr
    }
}

fn cache(trike: &Trike) -> PathBuf {
    trike.path("hf/hub/models--trike--tiny").into()
}

/// Every file in a folder, by relative path.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in next.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The cache has no named model, and nothing is written outside of it.
#[track_caller]
fn nothing_looks_complete(trike: &Trike) {
    for file in files(trike.path("").as_ref()) {
        let blob = file.starts_with("hf/hub/models--trike--tiny/blobs/");
        assert!(blob || file.starts_with("hf/hub/.locks/models--trike--tiny/"), "{file}");
    }
    let offline = trike
        .command(&["run", "-m", "trike/tiny", "-p", "x"])
        .env("HF_HUB_CACHE", trike.path("hf/hub"))
        .output();
    let error = utf8(offline.unwrap().stderr);
    assert!(error.contains("HF_HUB_OFFLINE is set"), "{error}");
}

fn plain_text() -> String {
    Trike::new().stdout(&["run", "-m", &tiny(), "-p", "Once", "-n", "3", "--temperature", "0"])
}

#[test]
fn a_model_is_downloaded_once() {
    let (trike, hub) = (Trike::new(), Hub::of(Repository::of(&tiny())));
    assert_eq!(hub.text(&trike, "trike/tiny"), plain_text());
    let folder = cache(&trike);
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let snapshot = folder.join("snapshots").join(COMMIT);
    let wanted = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(files(&snapshot), wanted);
    let content = std::fs::read(format!("{}/model.safetensors", tiny())).unwrap();
    #[cfg(unix)]
    {
        let link = std::fs::read_link(snapshot.join("model.safetensors")).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("../../blobs/{}", sha256(&content)));
    }
    assert_eq!(std::fs::read(snapshot.join("model.safetensors")).unwrap(), content);
    assert_eq!(files(&folder.join("blobs")).len(), wanted.len(), "nothing else, and nothing half");

    // The token is sent to the hub only.
    assert!(hub.main.asked().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert_eq!(hub.cdn.asked().len(), 1);
    assert!(hub.cdn.asked().iter().all(|r| r.header("authorization").is_none()));

    // From here on nothing is requested, offline or not.
    let before = hub.asked();
    for id in ["trike/tiny", "trike/tiny@main", &format!("trike/tiny@{COMMIT}")] {
        assert_eq!(hub.text(&trike, id), plain_text());
        let offline = hub.command(&trike, id).env("HF_HUB_OFFLINE", "1").output().unwrap();
        assert!(offline.status.success());
    }
    assert_eq!(hub.asked(), before);

    // Another name of the same commit downloads only that name.
    assert_eq!(hub.text(&trike, "trike/tiny@refs/pr/1"), plain_text());
    assert!(hub.main.asked().iter().any(|r| r.path.ends_with("/revision/refs%2Fpr%2F1")));
    assert_eq!(hub.cdn.asked().len(), 1);
    assert_eq!(std::fs::read_to_string(folder.join("refs/refs/pr/1")).unwrap(), COMMIT);
}

/// Writes the tensors of a GGUF file into two files.
fn in_two(path: &str) -> [(String, Vec<u8>); 2] {
    use trike::format::{Gguf, GgufType, GgufWriter, TensorSource};
    let file = Gguf::open(path).unwrap();
    let tensors = file.tensors();
    let write = |number: usize, range: std::ops::Range<usize>| {
        let name = format!("tiny-{:05}-of-00002.gguf", number + 1);
        let part = format!("{}/{name}", Path::new(path).parent().unwrap().display());
        let mut writer = GgufWriter::create(&part).unwrap();
        for (key, value) in
            file.metadata().iter().filter(|(key, _)| number == 0 && *key != "general.alignment")
        {
            writer.metadata(key, value.clone()).unwrap();
        }
        writer.metadata("split.no", number as u16).unwrap();
        writer.metadata("split.count", 2u16).unwrap();
        writer.metadata("split.tensors.count", tensors.len() as i32).unwrap();
        for tensor in &tensors[range] {
            let kind = match tensor.kind.to_string().as_str() {
                "F32" => GgufType::F32,
                "F16" => GgufType::F16,
                "Q8_0" => GgufType::Q8_0,
                _ => GgufType::Tq2_0,
            };
            writer.tensor(&tensor.name, &file.load(&tensor.name).unwrap(), kind).unwrap();
        }
        writer.finish().unwrap();
        (name, std::fs::read(part).unwrap())
    };
    [write(0, 0..tensors.len() / 2), write(1, tensors.len() / 2..tensors.len())]
}

#[test]
fn a_split_gguf_model_is_downloaded_whole() {
    let trike = Trike::new();
    let path = trike.path("tiny.gguf");
    trike.stdout(&["convert", &tiny(), &path, "--to", "tq2_0"]);
    let parts = in_two(&path);
    let bytes: usize = parts.iter().map(|(_, content)| content.len()).sum();
    // The path of any part opens the model, with its total size.
    let sizes = |path: &str| trike.json(&["show", "-m", path, "--json"])["bytes"].clone();
    for (name, _) in &parts {
        assert_eq!(sizes(&trike.path(name)), sizes(&path));
    }
    let hub = Hub::of(Repository { files: parts.into(), cdn: String::new() });
    let output = hub.other(&trike, &["pull", "trike/tiny", "--json"]).output().unwrap();
    let pulled: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(pulled["bytes"], bytes);
    assert_eq!(hub.text(&trike, "trike/tiny"), plain_text());
}

#[test]
fn one_of_several_gguf_files_is_named() {
    let trike = Trike::new();
    let mut files = Repository::default();
    for to in ["tq2_0", "tq1_0"] {
        let path = trike.path(&format!("{to}.gguf"));
        trike.stdout(&["convert", &tiny(), &path, "--to", to]);
        files.files.insert(format!("q/tiny-{to}.gguf"), std::fs::read(path).unwrap());
    }
    files.files.insert("config.json".to_owned(), b"{}".to_vec());
    files.files.insert("mmproj-tiny.gguf".to_owned(), b"of images".to_vec());
    let hub = Hub::of(files);
    let error = hub.fails(&trike, "trike/tiny@main");
    assert!(error.contains("trike/tiny@main:FILE, or by a part of its name, such as :Q2_0; files: q/tiny-tq1_0.gguf, q/tiny-tq2_0.gguf\n"), "{error}");
    let error = hub.fails(&trike, "trike/tiny:q/tiny.gguf");
    assert!(error.contains("no file `q/tiny.gguf`") && error.contains("q/tiny-tq1_0.gguf"), "{error}");
    assert!(hub.cdn.asked().is_empty());
    for name in ["tq1_0", "tq2_0"] {
        assert_eq!(hub.text(&trike, &format!("trike/tiny:q/tiny-{name}.gguf")), plain_text());
    }
    assert_eq!(hub.cdn.asked().len(), 2, "only what was named");
    // Both are cached now.
    assert!(hub.fails(&trike, "trike/tiny").contains("trike/tiny:FILE"));
}

fn usual(_: &Request) -> Option<Reply> {
    None
}

/// A server of large files that closes the first connections after `cut` bytes.
fn cutting(times: usize, cut: usize, files: &Repository) -> impl Fn(&Request) -> Option<Reply> + use<> {
    let (seen, files) = (AtomicUsize::new(0), files.clone());
    move |request| {
        let cut = (seen.fetch_add(1, Ordering::SeqCst) < times).then_some(cut);
        Some(Reply { cut, ..files.large(request) })
    }
}

/// The size of a file of the bundled model.
fn size_of(file: &str) -> usize {
    std::fs::metadata(format!("{}/{file}", tiny())).expect("the file").len() as usize
}

#[test]
fn a_download_goes_on_where_it_broke_off() {
    let files_of_tiny = Repository::of(&tiny());
    let trike = Trike::new();
    let hub = Hub::with(files_of_tiny.clone(), usual, cutting(2, 300_000, &files_of_tiny));
    assert_eq!(hub.text(&trike, "trike/tiny"), plain_text());
    let ranges: Vec<Option<String>> =
        hub.cdn.asked().iter().map(|request| request.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges, [None, Some("bytes=300000-".to_owned()), Some("bytes=600000-".to_owned())]);

    // A server that stops sending: the partial file is kept, and not mistaken for a complete one.
    let trike = Trike::new();
    let stops = |files: &Repository| {
        let files = files.clone();
        move |request: &Request| {
            let cut = Some(if request.header("range").is_none() { 300_000 } else { 0 });
            Some(Reply { cut, ..files.large(request) })
        }
    };
    let hub = Hub::with(files_of_tiny.clone(), usual, stops(&files_of_tiny));
    let error = hub.fails(&trike, "trike/tiny");
    let expected = format!("expected {} bytes, connection closed after 300000", size_of("model.safetensors"));
    assert!(error.contains(&expected), "{error}");
    nothing_looks_complete(&trike);
    let good = Hub::of(files_of_tiny.clone());
    assert_eq!(good.text(&trike, "trike/tiny"), plain_text());
    assert_eq!(good.cdn.asked()[0].header("range"), Some("bytes=300000-"));

    // The partial file may have other contents; then the digest differs, and the next run starts over.
    let trike = Trike::new();
    let blob = sha256(&files_of_tiny.files["model.safetensors"]);
    std::fs::create_dir_all(cache(&trike).join("blobs")).unwrap();
    std::fs::write(cache(&trike).join(format!("blobs/{blob}.incomplete")), vec![7; 1000]).unwrap();
    assert!(good.fails(&trike, "trike/tiny").contains("expected SHA-256"));
    assert_eq!(good.text(&trike, "trike/tiny"), plain_text());
    // A server with opaque ETags, as mirrors may have: data of two downloads is not mixed.
    let trike = Trike::new();
    std::fs::create_dir_all(cache(&trike).join("blobs")).unwrap();
    std::fs::write(cache(&trike).join("blobs/name-1.incomplete"), vec![7; 1000]).unwrap();
    let named = |request: &Request| {
        let large =
            request.is("HEAD", "model.safetensors").then(|| Reply::new(200, "").with("ETag", "\"name-1\""));
        large.map(|reply| Reply { length: Some(size_of("model.safetensors").to_string()), ..reply })
    };
    let mirror = Hub::with(files_of_tiny.clone(), named, usual);
    assert_eq!(mirror.text(&trike, "trike/tiny"), plain_text());
    assert_eq!(mirror.cdn.asked()[0].header("range"), None);
    // A server without ranges starts over, too.
    let trike = Trike::new();
    std::fs::create_dir_all(cache(&trike).join("blobs")).unwrap();
    std::fs::write(cache(&trike).join(format!("blobs/{blob}.incomplete")), vec![7; 1000]).unwrap();
    let content = files_of_tiny.files["model.safetensors"].clone();
    let whole = Hub::with(files_of_tiny, usual, move |_| Some(Reply::new(200, content.clone())));
    assert_eq!(whole.text(&trike, "trike/tiny"), plain_text());
}

#[test]
fn a_download_that_is_killed_looks_like_nothing_and_goes_on() {
    let files_of_tiny = Repository::of(&tiny());
    let hangs = {
        let files = files_of_tiny.clone();
        move |request: &Request| {
            Some(Reply { cut: Some(300_000), silence: Duration::from_secs(20), ..files.large(request) })
        }
    };
    let (trike, hub) = (Trike::new(), Hub::with(files_of_tiny.clone(), usual, hangs));
    let mut child =
        hub.command(&trike, "trike/tiny").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let blob = sha256(&files_of_tiny.files["model.safetensors"]);
    let partial = cache(&trike).join(format!("blobs/{blob}.incomplete"));
    let start = Instant::now();
    while std::fs::metadata(&partial).map_or(0, |meta| meta.len()) < 300_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "the download does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_looks_complete(&trike);
    let good = Hub::of(files_of_tiny);
    assert_eq!(good.text(&trike, "trike/tiny"), plain_text());
    assert_eq!(good.cdn.asked()[0].header("range"), Some("bytes=300000-"));
}

#[test]
fn a_silent_server_is_not_waited_for() {
    let silent = Duration::from_secs(60);
    let files_of_tiny = Repository::of(&tiny());
    let halfway = {
        let files = files_of_tiny.clone();
        move |request: &Request| Some(Reply { cut: Some(0), silence: silent, ..files.large(request) })
    };
    let body = Hub::with(files_of_tiny.clone(), usual, halfway);
    let wait = move |_: &Request| {
        std::thread::sleep(silent);
        None
    };
    let answer = Hub::with(files_of_tiny, wait, usual);
    for (hub, word) in [(body, "fewer than 16384 bytes in 1 s"), (answer, "/api/models/trike/tiny")] {
        let (trike, start) = (Trike::new(), Instant::now());
        let mut command = hub.command(&trike, "trike/tiny");
        command.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").env("HF_HUB_ETAG_TIMEOUT", "1");
        let error = utf8(command.output().unwrap().stderr);
        assert!(error.contains(word), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        nothing_looks_complete(&trike);
    }
}

#[test]
fn two_at_once_download_once() {
    let files_of_tiny = Repository::of(&tiny());
    let slow = {
        let files = files_of_tiny.clone();
        move |request: &Request| {
            std::thread::sleep(Duration::from_millis(500));
            Some(files.large(request))
        }
    };
    let hub = Arc::new(Hub::with(files_of_tiny, usual, slow));
    let trike = Arc::new(Trike::new());
    let both = [(); 2].map(|()| {
        let (hub, trike) = (Arc::clone(&hub), Arc::clone(&trike));
        std::thread::spawn(move || hub.text(&trike, "trike/tiny"))
    });
    for text in both {
        assert_eq!(text.join().unwrap(), plain_text());
    }
    assert_eq!(hub.cdn.asked().len(), 1);
}

#[test]
fn pull_downloads_once_and_brings_up_to_date() {
    let trike = Trike::new();
    let hub = Hub::of(Repository::of(&tiny()));
    let pull = |args: &[&str]| {
        let output =
            hub.other(&trike, &[&["pull", "trike/tiny"], args].concat()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{}", utf8(output.stderr));
        utf8(output.stdout)
    };
    let first = pull(&[]);
    assert!(first.starts_with("trike/tiny: ") && first.contains("kB in "), "{first}");
    let (asked, sent) = (hub.asked(), hub.cdn.asked().len());
    let json: serde_json::Value = serde_json::from_str(&pull(&["--json"])).expect("JSON");
    assert!(json["path"].as_str().expect("a path").ends_with(COMMIT), "{json}");
    assert!(hub.asked() > asked, "it asks for the newest state");
    assert_eq!(hub.cdn.asked().len(), sent, "and has it already");
    let listed = hub.other(&trike, &["list"]).output().expect("it starts");
    assert!(utf8(listed.stdout).contains("trike/tiny"));
    let offline = trike.fails(1, &["pull", "trike/tiny"]);
    assert!(offline.contains("HF_HUB_OFFLINE is set"), "{offline}");
}
