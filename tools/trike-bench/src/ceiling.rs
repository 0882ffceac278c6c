//! Peak rates of a machine or device, measured in the same run as the kernels.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// The resource that limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Memory bandwidth: bytes read, or bytes read and written by a copy.
    Memory,
    /// Int8 multiply-adds.
    Int8,
    /// F16 multiply-adds of matrix instructions.
    F16,
}

/// Best rate among several probe loops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// The resource.
    pub limit: Limit,
    /// Host threads of the loop; 0 on a device.
    pub threads: usize,
    /// Bytes or multiply-adds per second.
    pub per_second: f64,
    /// Name of the fastest loop.
    pub variant: String,
}

/// The ceiling for this number of threads, in units per second.
pub(crate) fn ceiling(ceilings: &[Ceiling], limit: Limit, threads: usize) -> Option<f64> {
    ceilings.iter().find(|c| c.limit == limit && c.threads == threads).map(|c| c.per_second)
}

/// Merges `now` into `found`, keeping the higher of repeated measurements of the same ceiling.
pub fn raise(found: &mut Vec<Ceiling>, now: Ceiling) {
    match found.iter_mut().find(|c| c.limit == now.limit && c.threads == now.threads) {
        Some(best) if best.per_second < now.per_second => *best = now,
        Some(_) => {}
        None => found.push(now),
    }
}

/// `1 thread`, `2 threads`.
#[must_use]
pub fn threads_text(n: usize) -> String {
    format!("{n} thread{}", if n == 1 { "" } else { "s" })
}

/// The ceilings as a Markdown list, one line per number of threads.
#[must_use]
pub fn ceilings_text(ceilings: &[Ceiling]) -> String {
    let mut text = String::new();
    for same in ceilings.chunk_by(|a, b| a.threads == b.threads) {
        let parts: Vec<String> = same.iter().map(Ceiling::text).collect();
        let who = if same[0].threads == 0 { "device".to_owned() } else { threads_text(same[0].threads) };
        let _ = writeln!(text, "* {who}: {}", parts.join(", "));
    }
    text
}

impl Ceiling {
    fn text(&self) -> String {
        let Self { per_second, variant, .. } = self;
        let billions = per_second / 1e9;
        match self.limit {
            Limit::Memory => format!("{billions:.1} GB/s from memory ({variant})"),
            Limit::Int8 => format!("{billions:.0} GMAC/s in int8 ({variant})"),
            Limit::F16 => format!("{billions:.0} GMAC/s in f16 ({variant})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_figure_of_each_kind_counts() {
        let of = |limit, per_second, variant: &str| Ceiling {
            limit,
            threads: 0,
            per_second,
            variant: variant.to_owned(),
        };
        let mut best = Vec::new();
        for (limit, rate, variant) in [
            (Limit::Memory, 3e9, "a"),
            (Limit::Int8, 4e9, "b"),
            (Limit::Memory, 2e9, "c"),
            (Limit::Int8, 5e9, "d"),
        ] {
            raise(&mut best, of(limit, rate, variant));
        }
        assert_eq!(best, [of(Limit::Memory, 3e9, "a"), of(Limit::Int8, 5e9, "d")]);
        assert_eq!(ceiling(&best, Limit::Int8, 0), Some(5e9));
        assert_eq!((ceiling(&best, Limit::F16, 0), ceiling(&best, Limit::Int8, 1)), (None, None));
        assert_eq!(ceilings_text(&best), "* device: 3.0 GB/s from memory (a), 5 GMAC/s in int8 (d)\n");
    }
}
