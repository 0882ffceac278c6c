//! Shares of the cases of a step that takes long.

use anyhow::{Context as _, Result};
use std::fmt;
use std::str::FromStr;

/// One of `of` shares of a step's cases: those whose number modulo `of` is `index`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

impl Share {
    pub(crate) const WHOLE: Self = Self { index: 0, of: 1 };

    /// The items of this share.
    pub(crate) fn select<T>(self, items: Vec<T>) -> Vec<T> {
        (0..).zip(items).filter(|(at, _)| at % self.of == self.index).map(|(_, item)| item).collect()
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let share =
            text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        let share = share.filter(|(index, of)| index < of).map(|(index, of)| Self { index, of });
        share.with_context(|| format!("expected a share such as 0/8, got {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_select_every_item_once() {
        for text in ["8/8", "1", "a/8", "-1/8", "0/0", ""] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        let mut all: Vec<u32> = Vec::new();
        for index in 0..3 {
            let share: Share = format!("{index}/3").parse().unwrap();
            all.extend(share.select((0..7).collect()));
        }
        assert_eq!(all, [0, 3, 6, 1, 4, 2, 5]);
        assert_eq!(Share::WHOLE.select(vec![1, 2]), [1, 2]);
    }
}
