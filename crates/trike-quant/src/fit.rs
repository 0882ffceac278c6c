//! Least-squares fits of grids to the weights of one group.

use trike_trit::MAX_DEPTH;

use crate::{Grid, linalg::solve_spd};

/// Maximum number of tied planes that are fitted exactly; with more, levels are so close that a search over the step is as good.
const EXACT_DEPTH: usize = 3;
/// Maximum number of events of an exact fit, 12 bytes each (13 per weight with three planes). Only whole tensors exceed it, and
/// for these a search is accurate enough.
const MOST_EVENTS: usize = 1 << 24;
/// Maximum group length of the exact asymmetric fit, whose cost is quadratic in the length.
const EXACT_LEN: usize = 512;
/// Maximum rounds of an alternating fit. Each lowers the error, and most fits converge after three.
const ROUNDS: usize = 12;

/// The least-squares fit of a tied grid without a mean to `weights`, weighted by `importance` (uniform if `None`).
///
/// Exact for up to three planes (and up to 2^24 weights with one plane, 4 M with two, 1.3 M with three): as the step shrinks,
/// codes grow one at a time at known steps, so all assignments that a step can induce are visited in the order of those events,
/// and the best one is kept. With one plane this is the optimal ternary fit. For more planes or weights, the step is searched.
///
/// ```
/// use trike_quant::fit_tied;
///
/// // The two largest weights are nonzero, and the scale is their mean.
/// let grid = fit_tied(&[1.0, -0.8, 0.1, 0.0], None, 1);
/// assert_eq!(grid.scales(), [0.9]);
/// ```
///
/// # Panics
///
/// Unless `depth` is 1 to 6.
pub fn fit_tied(weights: &[f32], importance: Option<&[f32]>, depth: usize) -> Grid {
    let events = weights.len().saturating_mul(Grid::max_code(depth) as usize);
    let step = if depth <= EXACT_DEPTH && events <= MOST_EVENTS {
        exact_step(weights, importance, depth)
    } else {
        searched_step(weights, importance, depth)
    };
    Grid::tied(depth, step, 0.0)
}

fn importance_of(importance: Option<&[f32]>, i: usize) -> f64 {
    importance.map_or(1.0, |all| f64::from(all[i]))
}

fn exact_step(weights: &[f32], importance: Option<&[f32]>, depth: usize) -> f32 {
    let most = Grid::max_code(depth);
    // (step below which the weight's code reaches k, index of the weight, k).
    let mut events: Vec<(f32, u32, i16)> = Vec::with_capacity(weights.len() * most as usize);
    for (i, w) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
        events.extend((1..=most).map(|k| (w.abs() / (f32::from(k) - 0.5), i as u32, k)));
    }
    events.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let (mut product, mut square) = (0f64, 0f64);
    let (mut best, mut step) = (0f64, 0f64);
    for (_, i, k) in events {
        let i = i as usize;
        let h = importance_of(importance, i);
        product += h * f64::from(weights[i].abs());
        square += h * f64::from(2 * k - 1);
        // Reduction of the error: (sum h w q)^2 / sum h q^2.
        if square > 0.0 && product * product / square > best {
            best = product * product / square;
            step = product / square;
        }
    }
    step as f32
}

fn searched_step(weights: &[f32], importance: Option<&[f32]>, depth: usize) -> f32 {
    let largest = weights.iter().fold(0f32, |m, w| m.max(w.abs()));
    let whole = largest / f32::from(Grid::max_code(depth));
    let (mut best, mut step) = (f64::INFINITY, whole);
    if whole == 0.0 {
        return 0.0;
    }
    for i in 0..64 {
        let mut candidate = whole * (1.05 - 0.012 * i as f32);
        for _ in 0..2 {
            let grid = Grid::tied(depth, candidate, 0.0);
            let (mut product, mut square) = (0f64, 0f64);
            for (i, &w) in weights.iter().enumerate() {
                let (h, q) = (importance_of(importance, i), f64::from(grid.nearest(w)));
                product += h * f64::from(w) * q;
                square += h * q * q;
            }
            if square > 0.0 && product > 0.0 {
                candidate = (product / square) as f32;
            }
        }
        let error = error(weights, importance, &Grid::tied(depth, candidate, 0.0));
        if error < best {
            (best, step) = (error, candidate);
        }
    }
    step
}

/// The least-squares fit of a tied grid with a mean to `weights`, weighted by `importance` (uniform if `None`).
///
/// Exact for one plane and up to 512 weights: an optimal assignment gives -1 to the smallest weights and +1 to the largest, so
/// all pairs of counts are tried. Otherwise codes are fitted in alternation with scale and mean, from several starting points,
/// and the result is never worse than [`fit_tied`].
///
/// # Panics
///
/// Unless `depth` is 1 to 6.
pub fn fit_tied_mean(weights: &[f32], importance: Option<&[f32]>, depth: usize) -> Grid {
    if depth == 1 && weights.len() <= EXACT_LEN {
        return exact_mean(weights, importance);
    }
    let total: f64 = (0..weights.len()).map(|i| importance_of(importance, i)).sum();
    let sum: f64 =
        weights.iter().enumerate().map(|(i, w)| importance_of(importance, i) * f64::from(*w)).sum();
    let (low, high) =
        weights.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &w| (l.min(w), h.max(w)));
    let symmetric = fit_tied(weights, importance, depth);
    let mut best = (error(weights, importance, &symmetric), symmetric);
    let mut shifted = vec![0.0; weights.len()];
    for start in [0.0, if total > 0.0 { (sum / total) as f32 } else { 0.0 }, 0.5 * (low + high)] {
        for (s, w) in shifted.iter_mut().zip(weights) {
            *s = w - start;
        }
        let mut grid = Grid::tied(depth, fit_tied(&shifted, importance, depth).step(), start);
        for _ in 0..ROUNDS {
            let Some((step, mean)) = line(weights, importance, |w| f64::from(grid.nearest(w))) else { break };
            let next = Grid::tied(depth, step, mean);
            if next == grid {
                break;
            }
            grid = next;
        }
        let error = error(weights, importance, &grid);
        if error < best.0 {
            best = (error, grid);
        }
    }
    best.1
}

/// Least-squares regression `mean + step * code` of the weights, as `(step, mean)`; `None` if all codes are equal.
fn line(weights: &[f32], importance: Option<&[f32]>, code: impl Fn(f32) -> f64) -> Option<(f32, f32)> {
    let mut sums = [0f64; 5];
    for (i, &w) in weights.iter().enumerate() {
        let (h, q, w) = (importance_of(importance, i), code(w), f64::from(w));
        for (sum, term) in sums.iter_mut().zip([h, h * q, h * q * q, h * w, h * q * w]) {
            *sum += term;
        }
    }
    let [n, q, qq, w, qw] = sums;
    let spread = qq - q * q / n;
    if !(n > 0.0 && spread > 1e-12 * qq) {
        return None;
    }
    let step = (qw - q * w / n) / spread;
    Some((step as f32, ((w - step * q) / n) as f32))
}

fn exact_mean(weights: &[f32], importance: Option<&[f32]>) -> Grid {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[a].total_cmp(&weights[b]));
    // Prefix sums over the k smallest weights: importance, and importance times weight.
    let mut sums = vec![(0f64, 0f64)];
    let (mut h_sum, mut w_sum) = (0f64, 0f64);
    for &i in &order {
        let h = importance_of(importance, i);
        h_sum += h;
        w_sum += h * f64::from(weights[i]);
        sums.push((h_sum, w_sum));
    }
    if h_sum <= 0.0 {
        return Grid::tied(1, 0.0, 0.0);
    }
    let n = weights.len();
    let (mut best, mut scale, mut mean) = (0f64, 0f64, w_sum / h_sum);
    for negative in 0..=n {
        let (h_neg, w_neg) = sums[negative];
        for &(h_rest, w_rest) in &sums[negative..=n] {
            let (h_pos, w_pos) = (h_sum - h_rest, w_sum - w_rest);
            let (t, tt, wt) = (h_pos - h_neg, h_pos + h_neg, w_pos - w_neg);
            let spread = tt - t * t / h_sum;
            let product = wt - t * w_sum / h_sum;
            // Both sides are multiplied by the positive spread, so that only improvements divide.
            if product > 0.0 && spread > 1e-12 * tt && product * product > best * spread {
                best = product * product / spread;
                scale = product / spread;
                mean = (w_sum - scale * t) / h_sum;
            }
        }
    }
    Grid::tied(1, scale as f32, mean as f32)
}

/// A grid of free planes, fitted by alternating assignment and least squares from the tied fit as the starting point: its error
/// is never larger than that of [`fit_tied`], or of [`fit_tied_mean`] if `with_mean`.
///
/// # Panics
///
/// Unless `depth` is 1 to 6.
pub fn fit_free(weights: &[f32], importance: Option<&[f32]>, depth: usize, with_mean: bool) -> Grid {
    let tied = if with_mean { fit_tied_mean } else { fit_tied }(weights, importance, depth);
    let mut grid = Grid::free(tied.scales(), tied.mean());
    if depth == 1 {
        return grid;
    }
    let mut best = error(weights, importance, &grid);
    let unknowns = depth + usize::from(with_mean);
    for _ in 0..ROUNDS {
        let mut normal = vec![0f64; unknowns * unknowns];
        let mut right = vec![0f64; unknowns];
        for (i, &w) in weights.iter().enumerate() {
            let trits = Grid::trits(grid.nearest(w), depth);
            let mut basis = [1f64; MAX_DEPTH + 1];
            for (b, t) in basis.iter_mut().zip(&trits[..depth]) {
                *b = f64::from(*t);
            }
            let h = importance_of(importance, i);
            for (a, left) in basis[..unknowns].iter().enumerate() {
                right[a] += h * left * f64::from(w);
                for (b, other) in basis[..unknowns].iter().enumerate() {
                    normal[a * unknowns + b] += h * left * other;
                }
            }
        }
        let Some(solution) = solve_spd(&mut normal, &right, 1e-9) else { break };
        let scales: Vec<f32> = solution[..depth].iter().map(|s| s.abs() as f32).collect();
        let next = Grid::free(&scales, if with_mean { solution[depth] as f32 } else { 0.0 });
        let error = error(weights, importance, &next);
        if error >= best {
            break;
        }
        (best, grid) = (error, next);
    }
    grid
}

/// The weighted squared error `sum h (w - value)^2`, each weight rounded to its nearest value.
pub fn error(weights: &[f32], importance: Option<&[f32]>, grid: &Grid) -> f64 {
    let each = weights.iter().enumerate();
    each.map(|(i, &w)| importance_of(importance, i) * f64::from(w - grid.value(grid.nearest(w))).powi(2))
        .sum()
}

#[cfg(test)]
mod tests {
    use trike_testkit::Rng;
    use trike_testkit::assert_near;

    use super::*;

    /// Every assignment of trits, with the best scale (and mean) for each.
    fn brute(weights: &[f32], importance: Option<&[f32]>, with_mean: bool) -> f64 {
        let n = weights.len();
        let mut best = f64::INFINITY;
        for code in 0..3usize.pow(n as u32) {
            let trit = |i: usize| (code / 3usize.pow(i as u32) % 3) as f64 - 1.0;
            let h = |i: usize| importance_of(importance, i);
            let sum = |f: &dyn Fn(usize) -> f64| (0..n).map(|i| h(i) * f(i)).sum::<f64>();
            let w = |i: usize| f64::from(weights[i]);
            let (mut scale, mut mean) = (0.0, 0.0);
            if with_mean {
                let (n, t, tt) = (sum(&|_| 1.0), sum(&trit), sum(&|i| trit(i) * trit(i)));
                let spread = tt - t * t / n;
                if spread > 1e-9 {
                    scale = (sum(&|i| w(i) * trit(i)) - t * sum(&w) / n) / spread;
                }
                mean = (sum(&w) - scale * t) / n;
            } else if sum(&|i| trit(i) * trit(i)) > 0.0 {
                scale = sum(&|i| w(i) * trit(i)) / sum(&|i| trit(i) * trit(i));
            }
            best = best.min(sum(&|i| (w(i) - mean - scale * trit(i)).powi(2)));
        }
        best
    }

    #[test]
    fn one_plane_is_as_good_as_every_assignment() {
        let mut rng = Rng::new(11);
        for round in 0..40 {
            let n = 1 + rng.below(7);
            let mut weights = rng.normals(n);
            if round % 4 == 0 {
                weights[0] = weights[n - 1];
            }
            let h: Vec<f32> = (0..n).map(|_| 0.05 + rng.f32_unit()).collect();
            for importance in [None, Some(&h[..])] {
                for with_mean in [false, true] {
                    let fit = if with_mean { fit_tied_mean } else { fit_tied };
                    let got = error(&weights, importance, &fit(&weights, importance, 1));
                    let want = brute(&weights, importance, with_mean);
                    assert_near!(got, want, abs = 1e-5 * (1.0 + want), "{weights:?} {h:?}");
                }
            }
        }
    }

    #[test]
    fn tied_planes_are_as_good_as_every_step() {
        let mut rng = Rng::new(5);
        for depth in 2..=MAX_DEPTH {
            let weights = rng.normals(24);
            let got = error(&weights, None, &fit_tied(&weights, None, depth));
            let largest = weights.iter().fold(0f32, |m, w| m.max(w.abs()));
            let scan = (1..4000).map(|i| {
                let step = largest / f32::from(Grid::max_code(depth)) * i as f32 / 2000.0;
                error(&weights, None, &Grid::tied(depth, step, 0.0))
            });
            let best = scan.fold(f64::INFINITY, f64::min);
            // Deep grids are searched and not exact.
            let slack = if depth <= EXACT_DEPTH { 1.0 } else { 1.3 };
            assert!(got <= best * slack + 1e-9, "{depth}: {got} {best}");
        }
    }

    #[test]
    fn a_mean_and_free_planes_never_hurt() {
        let mut rng = Rng::new(6);
        for depth in 1..=4 {
            let weights: Vec<f32> = rng.normals(48).iter().map(|w| w * w + 0.3 * w).collect();
            let e = |grid: &Grid| error(&weights, None, grid);
            let (tied, mean) = (fit_tied(&weights, None, depth), fit_tied_mean(&weights, None, depth));
            assert!(e(&mean) <= e(&tied) * (1.0 + 1e-6), "{depth}");
            // A distribution with one long tail gains from a mean.
            assert!(depth > 2 || e(&mean) < 0.9 * e(&tied), "{depth}");
            assert!(e(&fit_free(&weights, None, depth, false)) <= e(&tied) * (1.0 + 1e-6), "{depth}");
            assert!(e(&fit_free(&weights, None, depth, true)) <= e(&mean) * (1.0 + 1e-6), "{depth}");
        }
    }

    #[test]
    fn groups_without_anything_to_fit() {
        for depth in 1..=MAX_DEPTH {
            for weights in [&[0.0f32; 8][..], &[0.25; 8], &[-3.0], &[1e-38, -1e-38], &[1e30, -1e30, 0.0]] {
                for grid in [
                    fit_tied(weights, None, depth),
                    fit_tied_mean(weights, None, depth),
                    fit_free(weights, None, depth, false),
                    fit_free(weights, None, depth, true),
                ] {
                    let scale = weights.iter().fold(0f32, |m, w| m.max(w.abs()));
                    for &w in weights {
                        let value = grid.value(grid.nearest(w));
                        assert_near!(
                            value,
                            w,
                            abs = 1e-2 * scale,
                            "{depth} {weights:?}: {grid:?} gives {value} for {w}"
                        );
                    }
                }
            }
        }
    }
}
