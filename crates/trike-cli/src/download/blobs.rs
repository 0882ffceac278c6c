//! Files of a repository in the cache: `blobs` by the names of their content, and links to them.
//!
//! Names and locks are those of the hub's own tools, so that both can fill one cache at the same time. A file has its
//! name only when all of it is there and has the digest that the name says; until then it is called `.incomplete`.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use ureq::http::StatusCode;

use super::{
    error::{HubError, printable, shown},
    http::{Ask, Client, again, read_error, text},
};

/// How often a lock is tried that another process has.
const POLL: Duration = Duration::from_millis(100);
const BUFFER: usize = 1 << 18;

/// A file of the repository, as its headers describe it.
#[derive(Debug)]
pub(super) struct Remote {
    /// Its path there, which stays inside a folder that it is joined to.
    pub(super) path: String,
    pub(super) url: String,
    /// The name of its content.
    pub(super) etag: String,
    pub(super) size: u64,
}

/// The folder of a model in the cache.
pub(super) struct Store {
    pub(super) folder: PathBuf,
    pub(super) locks: PathBuf,
}

/// How content is named.
enum Naming {
    /// Large files: SHA-256.
    Sha256,
    /// The rest: SHA-1 as git computes it, over a header and the content.
    Git,
    /// Another server's names, which say nothing.
    Opaque,
}

impl Naming {
    fn of(etag: &str) -> Self {
        let hex = etag.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match etag.len() {
            64 if hex => Self::Sha256,
            40 if hex => Self::Git,
            _ => Self::Opaque,
        }
    }
}

impl Store {
    pub(super) fn blob(&self, remote: &Remote) -> PathBuf {
        self.folder.join("blobs").join(&remote.etag)
    }

    /// Whether the content is there.
    fn has(&self, remote: &Remote) -> bool {
        fs::metadata(self.blob(remote)).is_ok_and(|meta| meta.is_file() && meta.len() == remote.size)
    }

    /// Gets the content, unless it is there. `report` takes the bytes that this file has so far.
    pub(super) fn fetch(
        &self,
        client: &Client,
        remote: &Remote,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let blob = self.blob(remote);
        make_parent(&blob)?;
        let _lock = if self.has(remote) { None } else { Some(self.lock(remote)?) };
        // Whoever had the lock may have brought it.
        if !self.has(remote) {
            let partial = self.folder.join("blobs").join(format!("{}.incomplete", remote.etag));
            self.complete(client, remote, &partial, report)?;
            fs::rename(&partial, &blob).map_err(HubError::io(&blob))?;
        }
        report(remote.size);
        Ok(())
    }

    fn lock(&self, remote: &Remote) -> Result<File, HubError> {
        let path = self.locks.join(format!("{}.lock", remote.etag));
        make_parent(&path)?;
        let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(HubError::io(&path))?;
        loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL),
                // A file system without locks: the digest still finds what two writers make of one file.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
            }
        }
    }

    /// Fills the partial file, over several connections when the first break off, and checks it.
    fn complete(
        &self,
        client: &Client,
        remote: &Remote,
        partial: &Path,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(partial);
        let mut file = open.map_err(HubError::io(partial))?;
        let naming = Naming::of(&remote.etag);
        // What no digest checks is not put together from pieces of two downloads.
        if matches!(naming, Naming::Opaque) {
            file.set_len(0).map_err(HubError::io(partial))?;
        }
        loop {
            let before = length(&file, partial)?;
            let filled = again(|| self.append(client, remote, &mut file, partial, report));
            match filled {
                Ok(()) => break,
                // As long as each attempt brings something there is an end.
                Err(error) if error.is_transient() && length(&file, partial)? > before => {}
                Err(error) => {
                    // The next attempt goes on from what is there, unless the server contradicted itself.
                    if matches!(error, HubError::Answer { .. }) {
                        remove(partial)?;
                    }
                    return Err(error);
                }
            }
        }
        let checked = check(&mut file, remote, &naming).map_err(HubError::io(partial))?;
        if let Err(error) = checked {
            remove(partial)?;
            return Err(error);
        }
        // A name must not outlive its content when the machine stops.
        file.sync_all().map_err(HubError::io(partial))
    }

    /// One request for what is missing.
    fn append(
        &self,
        client: &Client,
        remote: &Remote,
        file: &mut File,
        partial: &Path,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let io_error = || HubError::io(partial);
        let mut have = length(file, partial)?;
        if have > remote.size {
            have = 0;
        }
        if have == remote.size && have > 0 || remote.size == 0 {
            return file.set_len(remote.size).map_err(io_error());
        }
        let mut answer = client.send(&remote.url, Ask::From(have))?;
        if have > 0 && answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            have = 0;
            answer = client.send(&remote.url, Ask::From(0))?;
        }
        client.check(&remote.url, &answer)?;
        have = match (answer.status(), text(answer.headers(), "content-range")) {
            (StatusCode::OK, _) => 0,
            (StatusCode::PARTIAL_CONTENT, Some(range)) if range.starts_with(&format!("bytes {have}-")) => {
                have
            }
            (status, range) => {
                let got = format!("{status}, {}", range.map_or("no range".to_owned(), printable));
                return Err(HubError::answer(&remote.url, format!("the bytes from {have}"), got));
            }
        };
        let missing = remote.size - have;
        if let Some(length) = text(answer.headers(), "content-length")
            && length.parse() != Ok(missing)
        {
            let got = printable(length);
            return Err(HubError::answer(&remote.url, format!("{missing} bytes"), got));
        }
        file.set_len(have).map_err(io_error())?;
        file.seek(io::SeekFrom::Start(have)).map_err(io_error())?;
        let mut body = client.body(answer);
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = body.read(&mut buffer);
            let read = match read {
                Ok(0) if have == remote.size => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    return Err(read_error(&remote.url, client.endpoint.read_timeout, error));
                }
                Ok(0) | Err(_) => {
                    let (url, expected) = (shown(&remote.url), remote.size);
                    return Err(HubError::Truncated { url, expected, got: have });
                }
                Ok(read) => read,
            };
            have += read as u64;
            if have > remote.size {
                let got = "more".to_owned();
                return Err(HubError::answer(&remote.url, format!("{} bytes", remote.size), got));
            }
            file.write_all(&buffer[..read]).map_err(io_error())?;
            report(have);
        }
    }

    /// Puts a file into the snapshot of a commit.
    pub(super) fn link(&self, remote: &Remote, commit: &str) -> Result<(), HubError> {
        let path = self.folder.join("snapshots").join(commit).join(&remote.path);
        if path.is_file() {
            return Ok(());
        }
        make_parent(&path)?;
        // A link that leads nowhere.
        remove(&path)?;
        let up = "../".repeat(2 + remote.path.matches('/').count());
        match point(&path, &format!("{up}blobs/{}", remote.etag), &self.blob(remote)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(HubError::io(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Says which commit a branch or tag is; the last step of a download.
    pub(super) fn name(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        make_parent(&path)?;
        let fresh = self.folder.join("refs").join(format!(".{}-{commit}", std::process::id()));
        fs::write(&fresh, commit).map_err(HubError::io(&fresh))?;
        fs::rename(&fresh, &path).map_err(HubError::io(&path))
    }
}

#[cfg(unix)]
fn point(link: &Path, relative: &str, _blob: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, link)
}

/// Links of this kind need rights that users lack elsewhere.
#[cfg(not(unix))]
fn point(link: &Path, _relative: &str, blob: &Path) -> io::Result<()> {
    fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(drop))
}

fn length(file: &File, path: &Path) -> Result<u64, HubError> {
    Ok(file.metadata().map_err(HubError::io(path))?.len())
}

fn make_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(HubError::io(parent))
}

fn remove(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HubError::io(path)(error)),
        _ => Ok(()),
    }
}

/// Whether the content is what its name says; the outer error is the disk's.
fn check(file: &mut File, remote: &Remote, naming: &Naming) -> io::Result<Result<(), HubError>> {
    let (kind, mut digest) = match naming {
        Naming::Sha256 => ("SHA-256", Context::new(&SHA256)),
        Naming::Git => {
            let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            digest.update(format!("blob {}\0", remote.size).as_bytes());
            ("git SHA-1", digest)
        }
        Naming::Opaque => return Ok(Ok(())),
    };
    file.rewind()?;
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => digest.update(&buffer[..read]),
        }
    }
    let got: String = digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if got == remote.etag {
        return Ok(Ok(()));
    }
    let (url, expected) = (shown(&remote.url), remote.etag.clone());
    Ok(Err(HubError::Digest { url, kind, expected, got }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_held_against_its_name() {
        // `git hash-object` and `sha256sum` of the same line.
        for (etag, good) in [
            ("ce013625030ba8dba906f756967f9e9ca394464a", true),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", true),
            ("f572d396fae9206628714fb2ce00f72e94f2258f", false),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be04", false),
            ("another-server", true),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"hello\n").unwrap();
            let remote = Remote { path: String::new(), url: String::new(), etag: etag.to_owned(), size: 6 };
            let checked = check(&mut file, &remote, &Naming::of(etag)).unwrap();
            assert_eq!(checked.is_ok(), good, "{etag}");
        }
    }
}
