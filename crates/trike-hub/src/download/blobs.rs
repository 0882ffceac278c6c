//! Repository files in the cache: `blobs`, named by content hash, and links to them.
//!
//! Names and locks are those of the hub's own tools, so both can fill one cache concurrently. A file gets its final
//! name only when it is complete and its digest is verified; until then it is named `.incomplete`.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use ureq::http::StatusCode;

use super::http::{Ask, Client, again, read_error, text};
use crate::HubError;
use crate::error::{printable, shown};

/// Polling interval for a lock held by another process.
const POLL: Duration = Duration::from_millis(100);
const BUFFER: usize = 1 << 18;

/// A file of the repository, as its headers describe it.
#[derive(Debug)]
pub(super) struct Remote {
    /// Path in the repository; relative, without `..`.
    pub(super) path: String,
    pub(super) url: String,
    /// Hash of the content, as named by the server.
    pub(super) etag: String,
    pub(super) size: u64,
}

/// Directory of a model in the cache.
pub(super) struct Store {
    pub(super) folder: PathBuf,
    pub(super) locks: PathBuf,
}

/// Type of an ETag.
enum Naming {
    /// Large files: SHA-256.
    Sha256,
    /// Small files: the git blob SHA-1, over a header and the content.
    Git,
    /// Other servers: opaque.
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

    /// Whether the content is in the cache.
    fn has(&self, remote: &Remote) -> bool {
        fs::metadata(self.blob(remote)).is_ok_and(|meta| meta.is_file() && meta.len() == remote.size)
    }

    /// Downloads the content unless it is cached. `report` receives the bytes of this file so far.
    pub(super) fn fetch(
        &self,
        client: &Client,
        remote: &Remote,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let blob = self.blob(remote);
        make_parent(&blob)?;
        let _lock = if self.has(remote) { None } else { Some(self.lock(remote)?) };
        // Another process may have downloaded it before releasing the lock.
        if !self.has(remote) {
            let partial = self.folder.join("blobs").join(format!("{}.incomplete", remote.etag));
            self.complete(client, remote, &partial, report)?;
            trike_format::publish(&partial, &blob).map_err(HubError::io(&blob))?;
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
                // On a file system without locks, the digest detects two concurrent writers.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
            }
        }
    }

    /// Fills the partial file, resuming over several connections if necessary, and verifies it.
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
        // Without a digest, data of two downloads must not be mixed.
        if matches!(naming, Naming::Opaque) {
            file.set_len(0).map_err(HubError::io(partial))?;
        }
        loop {
            let before = length(&file, partial)?;
            let filled = again(|| self.append(client, remote, &mut file, partial, report));
            match filled {
                Ok(()) => break,
                // Terminates, because every iteration makes progress.
                Err(error) if error.is_transient() && length(&file, partial)? > before => {}
                Err(error) => {
                    // Keep the partial file for the next attempt, unless the server contradicted itself.
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
        // The content must reach the disk before the rename.
        file.sync_all().map_err(HubError::io(partial))
    }

    /// One request for the missing bytes.
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
                    let reason = format!("expected {} bytes, connection closed after {have}", remote.size);
                    return Err(HubError::Interrupted { url: shown(&remote.url), reason });
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

    /// Links a file into the snapshot of a commit.
    pub(super) fn link(&self, remote: &Remote, commit: &str) -> Result<(), HubError> {
        let path = self.folder.join("snapshots").join(commit).join(&remote.path);
        if path.is_file() {
            return Ok(());
        }
        make_parent(&path)?;
        // Removes a dangling link.
        remove(&path)?;
        let up = "../".repeat(2 + remote.path.matches('/').count());
        match point(&path, &format!("{up}blobs/{}", remote.etag), &self.blob(remote)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(HubError::io(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Records the commit of a branch or tag; the last step of a download.
    pub(super) fn name(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        make_parent(&path)?;
        trike_format::OutputFile::replace(&path, commit).map_err(HubError::io(&path))
    }
}

#[cfg(unix)]
fn point(link: &Path, relative: &str, _blob: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, link)
}

/// Symbolic links need extra privileges outside of Unix.
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

/// Checks the content against the digest in its name; the outer error is an I/O error.
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
