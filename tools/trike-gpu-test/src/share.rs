//! A part of the cases that take longest, chosen by their names: for a quick check of a commit.

use std::fmt;
use std::str::FromStr;

/// One of `of` parts of equal expected size; each name belongs to exactly one part, in every build of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u64,
    of: u64,
}

impl Share {
    /// Whether a name belongs to this part.
    pub fn has(self, name: &str) -> bool {
        // FNV-1a, whose low bits alone repeat with a short period; the standard library's hasher may change.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash >> 32) % self.of == self.part
    }

    /// Why a case of another part is skipped.
    pub fn reason(self) -> String {
        format!("not in part {self}")
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((part, of)) if part < of => Ok(Self { part, of }),
            _ => Err("expected PART/PARTS, such as 0/8 to 7/8".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_in_one_part_of_similar_size() {
        let parts: Vec<Share> = (0..8).map(|part| Share { part, of: 8 }).collect();
        let mut sizes = [0; 8];
        for i in 0..8000 {
            let name = format!("linear [17] x 2049 m={i} Int8PerToken");
            let mut of: Vec<usize> = (0..8).filter(|&part| parts[part].has(&name)).collect();
            sizes[of.pop().unwrap()] += 1;
            assert!(of.is_empty(), "{name}");
        }
        assert!(sizes.iter().all(|size| (850..1150).contains(size)), "{sizes:?}");
    }

    #[test]
    fn parts_are_read_and_written() {
        assert_eq!("3/8".parse::<Share>().unwrap().to_string(), "3/8");
        for wrong in ["8/8", "1", "0/0", "a/b", "-1/8", ""] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
