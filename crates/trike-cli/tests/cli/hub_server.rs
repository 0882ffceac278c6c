//! A hub on the loopback interface, well-behaved or malicious as a test requires.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use ring::digest;

/// The commit of every revision.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Whether it is the given request for a file.
    pub(crate) fn is(&self, method: &str, file: &str) -> bool {
        self.method == method && self.path.split('?').next().is_some_and(|path| path.ends_with(file))
    }
}

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Overrides the `Content-Length` of the body; an empty one omits the header.
    pub(crate) length: Option<String>,
    /// Number of bytes of the body sent before the connection is closed.
    pub(crate) cut: Option<usize>,
    /// How long the connection then stays open.
    pub(crate) silence: Duration,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn send(&self, request: &Request, stream: &mut TcpStream) -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 {} Answer\r\nConnection: close\r\n", self.status)?;
        match self.length.as_deref() {
            Some("") => {}
            Some(length) => write!(stream, "Content-Length: {length}\r\n")?,
            None => write!(stream, "Content-Length: {}\r\n", self.body.len())?,
        }
        for (name, value) in &self.headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        stream.write_all(b"\r\n")?;
        if request.method != "HEAD" {
            stream.write_all(&self.body[..self.cut.unwrap_or(self.body.len()).min(self.body.len())])?;
        }
        stream.flush()?;
        std::thread::sleep(self.silence);
        Ok(())
    }
}

/// A server that logs its requests.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        // Runs until the tests end.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // A client that disconnects is not an error of the server.
                    let _ = one(stream, &log, &*answer);
                });
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().expect("no panic").clone()
    }
}

fn one(
    mut stream: TcpStream,
    log: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request) -> Reply,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    for line in lines {
        match line?.split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let request = Request { method, path, headers };
    log.lock().expect("no panic").push(request.clone());
    answer(&request).send(&request, &mut stream)
}

/// The files of `trike/tiny` on a hub.
#[derive(Clone, Default)]
pub(crate) struct Repository {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Server of large files.
    pub(crate) cdn: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, content).as_ref())
}

fn git_sha1(content: &[u8]) -> String {
    let whole = [format!("blob {}\0", content.len()).as_bytes(), content].concat();
    hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &whole).as_ref())
}

fn is_large(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".gguf")
}

impl Repository {
    /// The repository of the files in a folder.
    pub(crate) fn of(folder: &str) -> Self {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
        let files = entries.map(|entry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, std::fs::read(entry.path()).expect("a file"))
        });
        Self { files: files.collect(), cdn: String::new() }
    }

    pub(crate) fn listing(&self, commit: &str) -> Reply {
        let names = self.files.keys().map(|name| serde_json::json!({ "rfilename": name }));
        let listing =
            serde_json::json!({ "sha": commit, "siblings": names.collect::<Vec<_>>(), "gated": false });
        Reply::new(200, listing.to_string())
    }

    /// Responses of the hub: large files are redirected, small ones served.
    pub(crate) fn answer(&self, request: &Request) -> Reply {
        let head = request.method == "HEAD";
        if request.path.starts_with("/api/models/trike/tiny/revision/") {
            return self.listing(COMMIT);
        }
        let file = request.path.strip_prefix("/trike/tiny/resolve/").and_then(|rest| rest.split_once('/'));
        let Some((name, content)) = file.and_then(|(_, path)| self.files.get_key_value(path)) else {
            return Reply::new(404, "no").with("X-Error-Code", "EntryNotFound");
        };
        if is_large(name) {
            let redirect = Reply::new(302, "elsewhere")
                .with("Location", format!("{}/{name}?signature=secret", self.cdn));
            let redirect = redirect.with("X-Linked-Etag", format!("\"{}\"", sha256(content)));
            return redirect.with("X-Linked-Size", content.len().to_string());
        }
        let whole = Reply::new(200, if head { Vec::new() } else { content.clone() });
        let whole = Reply { length: Some(content.len().to_string()), ..whole };
        whole.with("ETag", format!("W/\"{}\"", git_sha1(content)))
    }

    /// Responses of the server of large files.
    pub(crate) fn large(&self, request: &Request) -> Reply {
        let name = request.path.trim_start_matches('/').split('?').next().unwrap_or_default();
        let Some(content) = self.files.get(name) else { return Reply::new(403, "no") };
        let start = request
            .header("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        match start {
            None => Reply::new(200, content.clone()),
            Some(start) if start < content.len() => {
                let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
                Reply::new(206, &content[start..]).with("Content-Range", range)
            }
            Some(_) => Reply::new(416, ""),
        }
    }
}
