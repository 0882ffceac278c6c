//! Pruning: selection of the weights that become zero.

use trike_core::{Bounds, OptionError};

use crate::{HessianFactor, MatrixView, QuantError, error::check_len};

/// Importance score of a weight.
#[derive(Clone, Copy, Debug)]
pub enum PruneScore<'a> {
    /// The magnitude.
    Magnitude,
    /// The magnitude times the L2 norm of the weight's input (Wanda, Sun et al., 2306.11695). Takes the sum of squares of each
    /// input, for example [`InputStatistics::diagonal`](crate::InputStatistics::diagonal).
    Wanda(&'a [f64]),
    /// The increase of the layer's squared output error if the weight becomes zero and the rest of its row compensates:
    /// `w^2 / (H^-1)_jj` (SparseGPT, Frantar and Alistarh, 2301.00774).
    Compensated(&'a HessianFactor),
}

/// Units of pruning. The score of a unit of several weights is the sum of their squared scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrunePattern {
    /// Single weights, ranked over the whole matrix.
    Unstructured,
    /// Single weights, ranked within each row.
    PerRow,
    /// All but `keep` of every `of` weights along a row; `share` is ignored. A shorter last group of a row is pruned in
    /// proportion, rounded down.
    NOfM {
        /// Weights kept per group.
        keep: usize,
        /// Weights per group.
        of: usize,
    },
    /// Blocks of `rows x cols` weights; those at the edges may be smaller. Kernels can skip zero blocks of 32 or 2048 weights
    /// along a row and of 16 x 16 weights.
    Blocks {
        /// Rows per block.
        rows: usize,
        /// Columns per block.
        cols: usize,
    },
}

/// The pruning mask of a matrix, row-major: `true` for each weight that is kept. Prunes the fraction `share` of the units of
/// `pattern` (weights or blocks); of equal scores, the first ones are pruned.
///
/// ```
/// use trike_quant::{MatrixView, PrunePattern, PruneScore, prune};
///
/// let w = [0.1, -3.0, 2.0, 0.5];
/// let view = MatrixView::new(1, 4, &w)?;
/// let keep = prune(view, PruneScore::Magnitude, PrunePattern::Unstructured, 0.5)?;
/// assert_eq!(keep, [false, true, true, false]);
/// let keep = prune(view, PruneScore::Magnitude, PrunePattern::NOfM { keep: 1, of: 2 }, 0.0)?;
/// assert_eq!(keep, [false, true, true, false]);
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
///
/// # Errors
///
/// [`QuantError::Option`] for a share outside 0 to 1 or a pattern without weights, [`QuantError::Shape`] for an empty block,
/// [`QuantError::Length`] if the width of the statistics differs.
pub fn prune(
    weights: MatrixView<'_>,
    score: PruneScore<'_>,
    pattern: PrunePattern,
    share: f64,
) -> Result<Vec<bool>, QuantError> {
    OptionError::check("share", Bounds::at_least(0.0).at_most(1.0), share)?;
    let (rows, cols) = (weights.rows(), weights.cols());
    let scores = squared_scores(weights, score)?;
    let mut keep = vec![true; rows * cols];
    let count = |n: usize| (share * n as f64).round() as usize;
    match pattern {
        PrunePattern::Unstructured => {
            for i in least(&scores, count(rows * cols)) {
                keep[i] = false;
            }
        }
        PrunePattern::PerRow => {
            for (scores, keep) in scores.chunks_exact(cols).zip(keep.chunks_exact_mut(cols)) {
                for i in least(scores, count(cols)) {
                    keep[i] = false;
                }
            }
        }
        PrunePattern::NOfM { keep: kept, of } => {
            OptionError::check("pattern.of", Bounds::at_least(1usize), of)?;
            OptionError::check("pattern.keep", Bounds::at_least(0usize).at_most(of), kept)?;
            for (scores, keep) in scores.chunks_exact(cols).zip(keep.chunks_exact_mut(cols)) {
                for (scores, keep) in scores.chunks(of).zip(keep.chunks_mut(of)) {
                    // u128, because `of` has no upper limit.
                    let dropped = (of - kept) as u128 * scores.len() as u128 / of as u128;
                    for i in least(scores, dropped as usize) {
                        keep[i] = false;
                    }
                }
            }
        }
        PrunePattern::Blocks { rows: height, cols: width } => {
            if height == 0 || width == 0 {
                return Err(QuantError::Shape { what: "block to prune", rows: height, cols: width });
            }
            let across = cols.div_ceil(width);
            let block = |i: usize| i / cols / height * across + i % cols / width;
            let mut sums = vec![0f64; rows.div_ceil(height) * across];
            for (i, score) in scores.iter().enumerate() {
                sums[block(i)] += score;
            }
            let mut kept = vec![true; sums.len()];
            for b in least(&sums, count(sums.len())) {
                kept[b] = false;
            }
            for (i, keep) in keep.iter_mut().enumerate() {
                *keep = kept[block(i)];
            }
        }
    }
    Ok(keep)
}

fn squared_scores(weights: MatrixView<'_>, score: PruneScore<'_>) -> Result<Vec<f64>, QuantError> {
    let cols = weights.cols();
    let factors = match score {
        PruneScore::Magnitude => vec![1.0; cols],
        PruneScore::Wanda(squares) => {
            check_len("sums of squared inputs", cols, squares.len())?;
            squares.to_vec()
        }
        PruneScore::Compensated(factor) => {
            check_len("columns of the factor", cols, factor.width())?;
            factor.inverse_diagonal().iter().map(|d| 1.0 / d).collect()
        }
    };
    let each = weights.values().iter().enumerate();
    Ok(each.map(|(i, w)| f64::from(*w).powi(2) * factors[i % cols]).collect())
}

/// The indices of the `count` smallest scores; of equal scores, the first ones.
fn least(scores: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

#[cfg(test)]
mod tests {
    use trike_testkit::Rng;
    use trike_testkit::assert_near;
    use trike_trit::Granularity;

    use super::*;
    use crate::{ColumnOrder, SquareMatrix};

    fn dropped(keep: &[bool]) -> usize {
        keep.iter().filter(|k| !**k).count()
    }

    #[test]
    fn every_pattern_drops_its_share() {
        let (rows, cols) = (32, 80);
        let weights = Rng::new(1).normals(rows * cols);
        let view = MatrixView::new(rows, cols, &weights).unwrap();
        let run = |pattern, share| prune(view, PruneScore::Magnitude, pattern, share).unwrap();
        for share in [0.0, 0.3, 0.5, 1.0] {
            let want = (share * (rows * cols) as f64).round() as usize;
            assert_eq!(dropped(&run(PrunePattern::Unstructured, share)), want);
            let by_row = run(PrunePattern::PerRow, share);
            assert!(by_row.chunks(cols).all(|row| dropped(row) == (share * cols as f64).round() as usize));
        }
        let all = run(PrunePattern::NOfM { keep: 1, of: usize::MAX }, 0.0);
        assert!(all.chunks(cols).all(|row| dropped(row) == cols - 1));
        let half = run(PrunePattern::NOfM { keep: 2, of: 4 }, 0.0);
        assert!(half.chunks(4).all(|four| dropped(four) == 2));
        // 80 columns are two blocks of 32 and one of 16.
        let blocks = run(PrunePattern::Blocks { rows: 1, cols: 32 }, 0.5);
        assert!(blocks.chunks(cols).all(|row| row.chunks(32).all(|b| [0, b.len()].contains(&dropped(b)))));
        let squares = run(PrunePattern::Blocks { rows: 16, cols: 16 }, 0.2);
        assert_eq!(dropped(&squares), 2 * 256);
        let kept =
            |keep: &[bool]| weights.iter().zip(keep).filter(|(_, k)| **k).map(|(w, _)| w.abs()).sum::<f32>();
        assert!(kept(&run(PrunePattern::Unstructured, 0.5)) > kept(&blocks));
    }

    #[test]
    fn scores_count_what_they_say() {
        let weights = [1.0, 2.0, 3.0];
        let view = MatrixView::new(1, 3, &weights).unwrap();
        let keep =
            prune(view, PruneScore::Wanda(&[100.0, 1.0, 1.0]), PrunePattern::Unstructured, 0.67).unwrap();
        assert_eq!(keep, [true, false, false]);
        // The second and third input are nearly the same: either can go, and the third is larger.
        let hessian = vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.999, 0.0, 0.999, 1.0];
        let hessian = SquareMatrix::new(3, hessian).unwrap();
        let cpu = trike_cpu::Cpu::new(1).unwrap();
        let factor =
            HessianFactor::new(&cpu, &hessian, Granularity::Row, ColumnOrder::Activation, 1e-6).unwrap();
        let keep = prune(view, PruneScore::Compensated(&factor), PrunePattern::Unstructured, 0.34).unwrap();
        assert_eq!(keep, [true, false, true]);
        let inverse = factor.inverse_diagonal();
        assert_near!(inverse[0], 1.0, abs = 1e-4);
        assert_near!(inverse[1], 1.0 / (1.0 - 0.999f64.powi(2)), rel = 0.01);
        assert!(prune(view, PruneScore::Wanda(&[1.0]), PrunePattern::Unstructured, 0.5).is_err());
        assert!(prune(view, PruneScore::Magnitude, PrunePattern::Unstructured, 1.1).is_err());
        assert!(prune(view, PruneScore::Magnitude, PrunePattern::Blocks { rows: 0, cols: 1 }, 0.5).is_err());
        assert!(prune(view, PruneScore::Magnitude, PrunePattern::NOfM { keep: 3, of: 2 }, 0.5).is_err());
    }
}
