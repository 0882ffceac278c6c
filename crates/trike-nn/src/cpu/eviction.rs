//! Content of a cache with eviction, and the choice of the evicted positions.

use trike_cpu::{Cpu, CpuError, CpuOps, KvView};

use crate::{AttentionSpec, Eviction};

/// The content of the cache of one layer: the remaining positions of the sequence in ascending order. All heads hold the same
/// number, each its own selection.
#[derive(Clone, Debug, Default)]
pub(super) struct Retained {
    /// Positions in the cache.
    used: usize,
    /// Tokens of the sequence.
    tokens: usize,
    /// Queries of the last tokens, `[tokens][heads][head_dim]`, at most [`Eviction::QUERIES`] of them.
    queries: Vec<f32>,
    /// Elements of the queries of a token.
    width: usize,
}

impl Retained {
    /// A cache with the first positions of a sequence that was saved.
    pub(super) fn restored(positions: usize) -> Self {
        Self { used: positions, tokens: positions, ..Self::default() }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Shortens the content to a sequence of `tokens` tokens. The sequence has checked that this does not reach back past the last
    /// eviction, so the removed tokens are the last positions of the cache.
    pub(super) fn rewind(&mut self, tokens: usize) {
        let gone = self.tokens.saturating_sub(tokens);
        self.used = self.used.saturating_sub(gone);
        self.tokens -= gone;
        self.queries.truncate(self.queries.len().saturating_sub(gone.saturating_mul(self.width)));
    }

    /// Adds `tokens` tokens; returns the position of the first.
    pub(super) fn extend(&mut self, tokens: usize) -> usize {
        let first = self.used;
        self.used += tokens;
        self.tokens += tokens;
        first
    }

    /// Keeps the queries of the last tokens, `width` elements each.
    pub(super) fn remember(&mut self, q: &[f32], width: usize) {
        let most = Eviction::QUERIES * width;
        self.width = width;
        self.queries.extend_from_slice(&q[q.len().saturating_sub(most)..]);
        self.queries.drain(..self.queries.len().saturating_sub(most));
    }

    /// The positions to keep, `kept` per key/value head, in ascending order; all others are dropped from the content.
    pub(super) fn choose(
        &mut self,
        cpu: &Cpu,
        spec: &AttentionSpec,
        kv: KvView<'_>,
        eviction: Eviction,
        kept: usize,
    ) -> Result<Vec<Vec<usize>>, CpuError> {
        let (used, rows) = (self.used, self.queries.len() / self.width.max(1));
        self.used = kept;
        let first = Eviction::first(kv.capacity);
        let newest = || (0..first).chain(used - (kept - first)..used).collect();
        // A sequence that was restored has no queries yet.
        if eviction != Eviction::Unattended || rows == 0 {
            return Ok((0..spec.kv_heads).map(|_| newest()).collect());
        }
        let last = used - Eviction::last(kv.capacity);
        let received = cpu.attention_received(spec, &self.queries, used - rows, kv)?;
        // NaN sorts as the maximum, so that it is kept and shows up in the output.
        let size = |sum: f32| if sum.is_nan() { f32::INFINITY } else { sum };
        let of_head = |sums: &[f32]| {
            let mut between: Vec<usize> = (first..last).collect();
            // Ties go to the later position.
            between.sort_by(|&a, &b| size(sums[b]).total_cmp(&size(sums[a])).then(b.cmp(&a)));
            between.truncate(kept - first - (used - last));
            between.sort_unstable();
            (0..first).chain(between).chain(last..used).collect()
        };
        Ok(received.chunks_exact(used).map(of_head).collect())
    }
}

#[cfg(test)]
mod tests {
    use trike_cpu::KeyScratch;
    use trike_testkit::Rng;

    use super::*;
    use crate::cpu::CpuCache;
    use crate::{CacheSpec, KeySelector, KvPrecision, PromptKeys};

    const HEADS: usize = 2;
    const D: usize = 12;
    const SPEC: AttentionSpec =
        AttentionSpec { heads: 3 * HEADS, kv_heads: HEADS, head_dim: D, scale: 0.6, window: None };
    const CAPACITY: usize = 80;

    fn cache(precision: KvPrecision, capacity: usize, eviction: Eviction) -> CpuCache {
        let (keys, prompt_keys) = (KeySelector::All, PromptKeys::All);
        let (kv_heads, head_dim) = (HEADS, D);
        let spec = CacheSpec { kv_heads, head_dim, capacity, precision, keys, prompt_keys, eviction };
        CpuCache::new(&spec).expect("small")
    }

    fn attend(cache: &mut CpuCache, cpu: &Cpu, q: &[f32], at: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len()];
        cache.attend(cpu, &SPEC, q, at, &mut KeyScratch::default(), &mut out).expect("valid");
        out
    }

    /// The softmax weights that the last queries give to the positions of a head, summed.
    fn received(keys: &[Vec<f32>], queries: &[Vec<f32>], head: usize) -> Vec<f64> {
        let mut sums = vec![0.0; keys.len()];
        for (i, q) in queries.iter().enumerate() {
            let seen = keys.len() - queries.len() + i + 1;
            for q in q.chunks_exact(D).skip(3 * head).take(3) {
                let score = |key: &Vec<f32>| -> f64 {
                    let products = q.iter().zip(&key[head * D..]).map(|(q, k)| f64::from(*q) * f64::from(*k));
                    products.sum::<f64>() * f64::from(SPEC.scale)
                };
                let weights: Vec<f64> = keys[..seen].iter().map(|key| score(key).exp()).collect();
                let total: f64 = weights.iter().sum();
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight / total);
            }
        }
        sums
    }

    /// After an eviction the cache equals, bit for bit, one filled with only the kept positions, which are those with the most
    /// attention.
    #[test]
    fn a_cache_keeps_what_it_chose() {
        let (cpu, mut rng) = (Cpu::new(2).expect("two threads"), Rng::new(3));
        let mut tokens =
            |width: usize| -> Vec<Vec<f32>> { (0..CAPACITY + 9).map(|_| rng.normals(width)).collect() };
        let (k, v, q) = (tokens(HEADS * D), tokens(HEADS * D), tokens(3 * HEADS * D));
        for precision in KvPrecision::ALL {
            for eviction in [Eviction::Oldest, Eviction::Unattended] {
                let mut evicting = cache(precision, CAPACITY, eviction);
                let mut retained = Retained::default();
                for at in 0..CAPACITY {
                    assert_eq!(evicting.admit(&cpu, &SPEC, at, 1).expect("valid"), at);
                    evicting.store(at, &k[at], &v[at]).expect("valid");
                    attend(&mut evicting, &cpu, &q[at], at);
                    retained.extend(1);
                    retained.remember(&q[at], 3 * HEADS * D);
                }
                let kept = Eviction::kept(CAPACITY);
                let chosen = evicting
                    .with_view(|view| retained.choose(&cpu, &SPEC, view, eviction, kept))
                    .expect("valid");
                for (head, chosen) in chosen.iter().enumerate() {
                    assert!(chosen.len() == kept && chosen.is_sorted() && chosen[kept - 1] == CAPACITY - 1);
                    let stored: Vec<Vec<f32>> = (0..CAPACITY).map(|slot| evicting.keys_at(slot)).collect();
                    let sums = received(&stored, &q[CAPACITY - Eviction::QUERIES..CAPACITY], head);
                    let (first, last) = (Eviction::first(CAPACITY), CAPACITY - Eviction::last(CAPACITY));
                    let mut between = sums[first..last].to_vec();
                    between.sort_by(|a, b| b.total_cmp(a));
                    let count = chosen.iter().filter(|p| (first..last).contains(p)).count();
                    let best: f64 = between.iter().take(count).sum();
                    let own: f64 =
                        chosen.iter().filter(|p| (first..last).contains(p)).map(|&p| sums[p]).sum();
                    match eviction {
                        // Sums that differ by less than the rounding error may be in either order.
                        Eviction::Unattended => {
                            assert!(own >= best - 0.01, "{precision:?}, head {head}: {own} of {best}");
                        }
                        _ => assert!((CAPACITY - kept + first..CAPACITY).eq(chosen[first..].iter().copied())),
                    }
                }
                assert_eq!(evicting.admit(&cpu, &SPEC, CAPACITY, 9).expect("valid"), kept);
                let mut filled = cache(precision, kept + 9, Eviction::Never);
                for slot in 0..kept {
                    let of = |all: &[Vec<f32>]| -> Vec<f32> {
                        let heads = chosen.iter().enumerate();
                        heads.flat_map(|(head, chosen)| all[chosen[slot]][head * D..][..D].to_vec()).collect()
                    };
                    filled.store(slot, &of(&k), &of(&v)).expect("valid");
                }
                for at in 0..9 {
                    evicting.store(kept + at, &k[CAPACITY + at], &v[CAPACITY + at]).expect("valid");
                    filled.store(kept + at, &k[CAPACITY + at], &v[CAPACITY + at]).expect("valid");
                }
                let queries = q[CAPACITY..].concat();
                let [got, want] =
                    [&mut evicting, &mut filled].map(|cache| attend(cache, &cpu, &queries, kept));
                assert!(got.iter().all(|v| v.is_finite()));
                assert_eq!(got, want, "{precision:?}, {eviction:?}");
            }
        }
    }
}
