//! The identity of a stored result: everything it depends on.

use std::{
    fmt::{self, Display},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    time::UNIX_EPOCH,
};

use trike_trit::TritTensor;

/// The identity of a stored result, such as a session, a decision or the finished parts of a run: everything it depends on, as
/// named facts in a fixed order. A result stored under a different identity is not used, and the [`Difference`] gives the reason.
///
/// ```
/// use trike_format::Identity;
///
/// let of = |bound: f64| Identity::new().with("model", "tiny").with("bound", bound);
/// let stored = of(0.1).facts().to_vec();
/// assert!(of(0.1).differs_from(&stored).is_none());
/// let difference = of(0.2).differs_from(&stored).expect("another bound");
/// assert_eq!(difference.to_string(), "bound was 0.1 and is 0.2");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    facts: Vec<(String, String)>,
}

impl Identity {
    /// An identity with only the version of Trike, which covers all changes of the code.
    #[expect(
        clippy::new_without_default,
        reason = "an identity is not a default value: its facts must be added"
    )]
    pub fn new() -> Self {
        Self { facts: Vec::new() }.with("the version of Trike", env!("CARGO_PKG_VERSION"))
    }

    /// Adds a fact. Names are unique and fit into a sentence, such as `the precision of the head`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.facts.push((name.to_owned(), value.to_string()));
        self
    }

    /// The facts, to be stored with the result.
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// The first fact in which `stored` differs; `None` if the identities are equal.
    pub fn differs_from(&self, stored: &[(String, String)]) -> Option<Difference> {
        Difference::between(stored, &self.facts)
    }

    /// A digest of all facts, for example for a file name. The facts themselves should also be stored in the file.
    pub fn digest(&self) -> Digest {
        let part = |digest: Digest, text: &String| digest.bytes(text.as_bytes());
        self.facts.iter().fold(Digest::default(), |digest, (name, value)| part(part(digest, name), value))
    }
}

/// A fact that has changed since a result was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub fact: String,
    /// Its value when the result was stored; `None` if it was not recorded.
    pub stored: Option<String>,
    /// Its value now.
    pub now: Option<String>,
}

impl Difference {
    /// The first fact of `now` with a different value in `stored`, otherwise the first fact that only `stored` has.
    pub fn between(stored: &[(String, String)], now: &[(String, String)]) -> Option<Self> {
        let find = |facts: &[(String, String)], name: &str| {
            facts.iter().find(|(fact, _)| fact == name).map(|(_, value)| value.clone())
        };
        let all = now.iter().chain(stored).map(|(name, _)| name);
        all.map(|name| Self { fact: name.clone(), stored: find(stored, name), now: find(now, name) })
            .find(|difference| difference.stored != difference.now)
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not recorded".to_owned());
        write!(f, "{} was {} and is {}", self.fact, value(&self.stored), value(&self.now))
    }
}

/// Maximum size of a file that is read completely.
const WHOLE: u64 = 1 << 30;
/// Size and number of the samples of a larger file.
const PART: usize = 1 << 16;
const PARTS: u64 = 1 << 12;

/// A 128-bit digest to recognize equal contents at memory bandwidth. It is not cryptographic: collisions can be constructed.
///
/// ```
/// use trike_format::Digest;
///
/// let digest = |text: &str| Digest::default().bytes(text.as_bytes()).to_string();
/// assert_eq!(digest("abc"), digest("abc"));
/// assert_ne!(digest("abc"), digest("abd"));
/// assert_eq!(digest("").len(), 32);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest([u64; 2]);

impl Digest {
    /// Adds bytes, prefixed with their length, so that two calls differ from one call with the concatenation.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words
            .iter()
            .fold(self, |digest, word| digest.word(u64::from_le_bytes(*word)))
            .word(u64::from_le_bytes(last))
            .word(bytes.len() as u64)
    }

    /// Adds a number, with two multiplicative hashes of different rotations, so that changes that cancel in one do not cancel in
    /// the other.
    #[must_use]
    pub fn word(self, word: u64) -> Self {
        let [a, b] = self.0;
        Self([
            (a.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95),
            (b.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ])
    }

    /// Adds a ternary tensor: its shape and the values of its weights.
    #[must_use]
    pub fn ternary(self, tensor: &TritTensor) -> Self {
        let mut row = vec![0.0; tensor.cols()];
        (0..tensor.rows()).fold(self.word(tensor.rows() as u64).word(row.len() as u64), |digest, i| {
            // The row index and the length of the buffer are valid.
            let _ = tensor.dequantize_row(i, &mut row);
            row.iter().fold(digest, |digest, value| digest.word(u64::from(value.to_bits())))
        })
    }

    /// Adds the contents of a file: all bytes up to 1 GiB; of a larger file, its size and 64 KiB at each of 4096 positions.
    ///
    /// # Errors
    ///
    /// The errors of the operating system.
    pub fn file(self, path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut digest = self.word(bytes);
        let mut part = vec![0; PART];
        let mut at = 0;
        let step = if bytes <= WHOLE { PART as u64 } else { bytes / PARTS };
        while at < bytes {
            if step != PART as u64 {
                file.seek(SeekFrom::Start(at))?;
            }
            let length = usize::try_from(bytes - at).unwrap_or(PART).min(PART);
            file.read_exact(&mut part[..length])?;
            digest = digest.bytes(&part[..length]);
            at += step;
        }
        Ok(digest)
    }

    /// As [`file`](Self::file), for a file that stays on this machine: for a file above 1 GiB, the modification time is also added.
    ///
    /// # Errors
    ///
    /// The errors of the operating system.
    pub fn local_file(self, path: &Path) -> io::Result<Self> {
        let digest = self.file(path)?;
        let meta = path.metadata()?;
        if meta.len() <= WHOLE {
            return Ok(digest);
        }
        let changed = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(digest.word(changed.as_secs()).word(u64::from(changed.subsec_nanos())))
    }
}

impl Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.0;
        write!(f, "{a:016x}{b:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bit flips that cancel in a hash that rotates by 5, and every single flip.
    #[test]
    fn changed_bytes_change_the_digest() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i * 7) as u8).collect();
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("it is written");
            Digest::default().file(&path).expect("it is read")
        };
        let first = of(&bytes);
        assert_eq!(of(&bytes), first);
        for at in [0, 7, 8, 4095, 65_535, 65_536, 69_999] {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            assert_ne!(of(&changed), first, "byte {at}");
        }
        let mut changed = bytes.clone();
        changed[7] ^= 0x80;
        changed[8] ^= 0x10;
        assert_ne!(of(&changed), first);
        assert_ne!(of(&bytes[..69_999]), first);
        let [ab_c, a_bc] = [["ab", "c"], ["a", "bc"]]
            .map(|parts| parts.iter().fold(Digest::default(), |digest, part| digest.bytes(part.as_bytes())));
        assert_ne!(ab_c, a_bc);
    }

    #[test]
    fn differences_are_named() {
        let now = Identity::new().with("the head", "int8").with("the text", 3);
        let of = |facts: &[(&str, &str)]| -> Vec<(String, String)> {
            let version = ("the version of Trike", env!("CARGO_PKG_VERSION"));
            [&[version], facts].concat().iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        let said = |stored: &[(&str, &str)]| now.differs_from(&of(stored)).map(|d| d.to_string());
        assert_eq!(said(&[("the head", "int8"), ("the text", "3")]), None);
        assert_eq!(
            said(&[("the head", "f32"), ("the text", "3")]).as_deref(),
            Some("the head was f32 and is int8")
        );
        assert_eq!(said(&[("the head", "int8")]).as_deref(), Some("the text was not recorded and is 3"));
        let more = [("the head", "int8"), ("the text", "3"), ("the moon", "full")];
        assert_eq!(said(&more).as_deref(), Some("the moon was full and is not recorded"));
        assert_ne!(Identity::new().digest(), now.digest());
    }
}
