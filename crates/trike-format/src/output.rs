//! Atomic writer of all files that Trike creates.

use std::{
    fs::{self, File, Metadata},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use tempfile::NamedTempFile;

/// Maximum number of symbolic links that are followed, as in Linux.
const MAX_LINKS: usize = 40;
/// Buffer size in bytes; larger writes bypass the buffer.
const BUFFER: usize = 1 << 16;

/// Temporary files and locks of this process.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// An output file that appears at its path when it is [finished](Self::finish).
///
/// Until then, the bytes are in a temporary file with a random name next to the target, which is removed if writing fails or the
/// value is dropped. `finish` synchronizes the data to disk and then renames the temporary file: readers always see either the old
/// content or the new one, even after a power failure. A symbolic link is kept, and its target is replaced. An existing file keeps
/// its permissions and, where the operating system allows it, its owner; other hard links to it keep the old content. An existing
/// file that is not writable is an error.
///
/// A path that is not a regular file (a pipe, a device, an open file of the process such as `/dev/stdout`) is written in place.
///
/// ```
/// use std::io::Write;
/// use trike_format::OutputFile;
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("a.txt");
/// std::fs::write(&path, "old")?;
/// let mut file = OutputFile::create(&path)?;
/// file.write_all(b"new")?;
/// assert_eq!(std::fs::read(&path)?, b"old");
/// file.finish()?;
/// assert_eq!(std::fs::read(&path)?, b"new");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct OutputFile {
    /// `None` after finishing.
    to: Option<BufWriter<Destination>>,
}

#[derive(Debug)]
enum Destination {
    /// A temporary file, and the path that it is renamed to.
    Temporary { file: NamedTempFile, target: PathBuf },
    /// A file that is written in place.
    InPlace(File),
}

impl OutputFile {
    /// Starts a file at `path`, in a directory that exists.
    ///
    /// # Errors
    ///
    /// The errors of the operating system, for example for a directory, a missing one, or a file that is not writable.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let destination = match Place::of(path)? {
            // Appends if the shell does: `>> file` with `/dev/stdout`.
            Place::Special { append } => {
                Destination::InPlace(File::options().write(true).append(append).open(path)?)
            }
            Place::File { target, found } => {
                if found.is_some() {
                    // Renaming would replace a write-protected file.
                    File::options().write(true).open(&target)?;
                }
                let file = temporary_for(&target)?;
                if let Some(found) = found {
                    keep_owner(file.as_file(), &found);
                    file.as_file().set_permissions(found.permissions())?;
                }
                remember(file.path());
                Destination::Temporary { file, target }
            }
        };
        Ok(Self { to: Some(BufWriter::with_capacity(BUFFER, destination)) })
    }

    /// Writes a whole file.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`finish`](Self::finish).
    pub fn replace(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        let mut file = Self::create(path)?;
        file.write_all(content.as_ref())?;
        file.finish()
    }

    /// Synchronizes the file to disk and moves it to its path.
    ///
    /// # Errors
    ///
    /// The errors of the operating system; an existing file is then kept.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        let Some(to) = self.to.take() else { return Ok(()) };
        match to.into_parts().0 {
            Destination::InPlace(file) => tolerated(file.sync_all()),
            Destination::Temporary { file, target } => {
                let path = file.path().to_owned();
                let synced = file.as_file().sync_all();
                let placed = synced.and_then(|()| file.persist(&target).map_err(|error| error.error));
                forget(&path);
                placed?;
                sync_folder(folder(&target))
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.as_mut().map_or(Ok(0), |to| to.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            // The rest of the buffer is discarded: the file is no longer wanted.
            let (destination, _) = to.into_parts();
            if let Destination::Temporary { file, .. } = destination {
                forget(file.path());
            }
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Temporary { file, .. } => file.write(bytes),
            Self::InPlace(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Temporary { file, .. } => file.flush(),
            Self::InPlace(file) => file.flush(),
        }
    }
}

/// The kind of entry at the path of an output.
pub(crate) enum Place {
    /// A path that is not a symbolic link, of a regular file or of a file that does not exist yet.
    File { target: PathBuf, found: Option<Metadata> },
    /// An entry that cannot be replaced.
    Special { append: bool },
}

impl Place {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => return Ok(Self::Special { append: false }),
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut target = path.to_owned();
        for _ in 0..MAX_LINKS {
            if !fs::symlink_metadata(&target).is_ok_and(|meta| meta.is_symlink()) {
                return Ok(Self::File { target, found });
            }
            // A link to an open file, which may have no name; a redirection of the shell must receive the bytes.
            if fs::canonicalize(folder(&target)).is_ok_and(|folder| folder.starts_with("/proc")) {
                return Ok(Self::Special { append: true });
            }
            let link = fs::read_link(&target)?;
            target = folder(&target).join(link);
        }
        Err(io::Error::other("too many symbolic links"))
    }
}

/// The final path of an output: the target of a symbolic link, which may not exist yet.
pub(crate) fn target(path: &Path) -> PathBuf {
    match Place::of(path) {
        Ok(Place::File { target, .. }) => target,
        _ => path.to_owned(),
    }
}

/// Renames a finished file or directory to its final path and synchronizes the directory. A dangling symbolic link is kept: its
/// target is created.
///
/// # Errors
///
/// The errors of the operating system.
pub fn publish(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        sync_folder(from)?;
    }
    let to = target(to);
    fs::rename(from, &to)?;
    sync_folder(folder(&to))
}

/// Removes the temporary files and locks of this process, for an exit that does not drop them.
pub fn remove_unfinished() {
    for path in std::mem::take(&mut *unfinished()) {
        // Best effort before the exit.
        let _ = fs::remove_file(path);
    }
}

fn unfinished() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    // A panic cannot leave the list of paths inconsistent.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn remember(path: &Path) {
    unfinished().push(path.to_owned());
}

pub(crate) fn forget(path: &Path) {
    unfinished().retain(|known| known != path);
}

/// A new temporary file in the directory of `target`, with the default permissions of new files.
fn temporary_for(target: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".trike-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A temporary file is private by default; this one becomes the target. The umask still applies.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder(target))
}

/// Gives a new file the owner of the file that it replaces, best effort: only root can do this for files of other users.
fn keep_owner(file: &File, found: &Metadata) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        if file.metadata().is_ok_and(|new| (new.uid(), new.gid()) != (found.uid(), found.gid())) {
            let _ = fchown(file, Some(found.uid()), Some(found.gid()));
        }
    }
    #[cfg(not(unix))]
    let _ = (file, found);
}

/// Synchronizes a directory to disk, so that a rename is durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    // Other operating systems cannot open directories as files.
    if cfg!(unix) {
        match File::open(folder) {
            Ok(folder) => tolerated(folder.sync_all())?,
            // A directory may be writable but not readable.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ignores that pipes, devices and some file systems cannot be synchronized.
fn tolerated(synced: io::Result<()>) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, Unsupported};
    match synced {
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => Ok(()),
        synced => synced,
    }
}

/// The directory of a path.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        // The temporary names of earlier versions are no longer used.
        for name in ["a.partial", "a.incomplete", "a.new"] {
            fs::write(dir.path().join(name), "mine").unwrap();
        }
        fs::write(&path, "old").unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(&[b'x'; BUFFER + 1]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()).len(), 5);
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["a", "a.incomplete", "a.new", "a.partial"]);
        OutputFile::replace(&path, "new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        for name in ["a.partial", "a.incomplete", "a.new"] {
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"mine");
        }
        assert_eq!(names(dir.path()).len(), 4);
        let kind = |path: &Path| OutputFile::create(path).unwrap_err().kind();
        assert_eq!(kind(dir.path()), io::ErrorKind::IsADirectory);
        assert_eq!(kind(&dir.path().join("none/a")), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_an_exit_leaves_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = OutputFile::create(dir.path().join("a")).unwrap();
        let Some(Destination::Temporary { file: temporary, .. }) = file.to.as_ref().map(BufWriter::get_ref)
        else {
            panic!("a temporary file")
        };
        let path = temporary.path().to_owned();
        assert!(path.exists() && unfinished().contains(&path));
        // Not `remove_unfinished`: other tests of this process also have files.
        drop(file);
        assert!(!path.exists() && !unfinished().contains(&path));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_stay() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        for (link, to) in
            [("one", "deep/real"), ("two", "one"), ("deep/up", "../fresh"), ("dangling", "deep/new")]
        {
            symlink(to, at(link)).unwrap();
        }
        fs::write(at("deep/real"), "old").unwrap();
        for (path, real) in
            [("one", "deep/real"), ("two", "deep/real"), ("deep/up", "fresh"), ("dangling", "deep/new")]
        {
            OutputFile::replace(at(path), path).unwrap();
            assert!(at(path).symlink_metadata().unwrap().is_symlink(), "{path}");
            assert_eq!(fs::read_to_string(at(real)).unwrap(), path);
        }
        symlink("round", at("round")).unwrap();
        assert!(OutputFile::create(at("round")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_kept_and_respected() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        OutputFile::replace(&path, "new").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o640);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).unwrap();
        // Root may write it.
        if File::options().write(true).open(&path).is_err() {
            let error = OutputFile::create(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_into() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("pipe", &link).unwrap();
        for path in [&pipe, &link] {
            let read = std::thread::spawn({
                let pipe = pipe.clone();
                move || fs::read(pipe)
            });
            OutputFile::replace(path, "through").unwrap();
            assert_eq!(read.join().unwrap().unwrap(), b"through");
            assert!(pipe.metadata().unwrap().file_type().is_fifo());
            assert_eq!(names(dir.path()), ["link", "pipe"]);
        }
    }
}
