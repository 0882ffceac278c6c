//! Allocation of a byte budget to layers.

use crate::QuantError;

/// One way to store a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Size in bytes.
    pub bytes: u64,
    /// Loss: any measure that is additive over layers, such as the divergence from the dense model.
    pub loss: f64,
}

/// Number of units of the bytes beyond the smallest choices. The size of each layer is rounded up to whole units, so that the
/// budget is never exceeded; this leaves at most `layers / 8192` of it unused.
const STEPS: u64 = 8192;

/// The choice of each layer that minimizes the sum of the losses within `budget` bytes: a multiple-choice knapsack problem,
/// solved by dynamic programming. Exact if the budget exceeds the smallest choices by at most 8192 bytes.
///
/// ```
/// use trike_quant::{Choice, allocate};
///
/// let layer = |losses: [f64; 2]| vec![Choice { bytes: 10, loss: losses[0] }, Choice { bytes: 20, loss: losses[1] }];
/// // The budget allows one large choice, for the layer where it reduces the loss most.
/// assert_eq!(allocate(&[layer([1.0, 0.9]), layer([5.0, 1.0])], 30)?, [0, 1]);
/// assert!(allocate(&[layer([1.0, 0.9])], 9).is_err());
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
///
/// # Errors
///
/// [`QuantError::Budget`] with the smallest achievable budget; [`QuantError::NoChoices`]; [`QuantError::NonFinite`] for
/// a loss, by its index among the choices of all layers.
pub fn allocate(layers: &[Vec<Choice>], budget: u64) -> Result<Vec<usize>, QuantError> {
    let mut smallest = 0u64;
    let mut losses = layers.iter().flatten().map(|c| c.loss).enumerate();
    if let Some((index, value)) = losses.find(|(_, loss)| !loss.is_finite()) {
        return Err(QuantError::NonFinite { what: "losses of choices", index, value });
    }
    for (layer, choices) in layers.iter().enumerate() {
        let least = choices.iter().map(|c| c.bytes).min().ok_or(QuantError::NoChoices { layer })?;
        smallest = smallest.saturating_add(least);
    }
    if smallest > budget {
        return Err(QuantError::Budget { requested: budget, smallest });
    }
    let spare = budget - smallest;
    let unit = spare.div_ceil(STEPS).max(1);
    let room = (spare / unit) as usize;
    // Per number of units beyond the smallest choices: the smallest loss of the layers so far; and per layer, its choice.
    let mut best = vec![0f64; room + 1];
    let mut taken: Vec<Vec<usize>> = Vec::with_capacity(layers.len());
    for choices in layers {
        let least = choices.iter().map(|c| c.bytes).min().unwrap_or(0);
        let mut next = vec![f64::INFINITY; room + 1];
        let mut chosen = vec![0; room + 1];
        for (i, choice) in choices.iter().enumerate() {
            let units = ((choice.bytes - least).div_ceil(unit)).min(usize::MAX as u64) as usize;
            for used in units..=room {
                let loss = best[used - units] + choice.loss;
                if loss < next[used] {
                    (next[used], chosen[used]) = (loss, i);
                }
            }
        }
        best = next;
        taken.push(chosen);
    }
    // More units never increase the loss, because a layer may leave units unused.
    let mut used = room;
    let mut result = vec![0; layers.len()];
    for (layer, choices) in layers.iter().enumerate().rev() {
        let choice = taken[layer][used];
        result[layer] = choice;
        let least = choices.iter().map(|c| c.bytes).min().unwrap_or(0);
        used -= (choices[choice].bytes - least).div_ceil(unit) as usize;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use trike_testkit::Rng;
    use trike_testkit::assert_near;

    use super::*;

    /// Every combination.
    fn brute(layers: &[Vec<Choice>], budget: u64) -> Option<f64> {
        match layers {
            [] => Some(0.0),
            [first, rest @ ..] => first
                .iter()
                .filter(|c| c.bytes <= budget)
                .filter_map(|c| brute(rest, budget - c.bytes).map(|loss| loss + c.loss))
                .min_by(f64::total_cmp),
        }
    }

    #[test]
    fn as_good_as_every_combination() {
        let mut rng = Rng::new(2);
        for _ in 0..60 {
            let layers: Vec<Vec<Choice>> = (0..1 + rng.below(5))
                .map(|_| {
                    let one = |_| Choice { bytes: rng.below(90) as u64, loss: f64::from(rng.f32_unit()) };
                    (0..4).map(one).collect()
                })
                .collect();
            let budget = rng.below(300) as u64;
            match (allocate(&layers, budget), brute(&layers, budget)) {
                (Ok(choices), Some(want)) => {
                    let picked = || choices.iter().zip(&layers).map(|(&c, layer)| layer[c]);
                    assert!(picked().map(|c| c.bytes).sum::<u64>() <= budget);
                    assert_near!(picked().map(|c| c.loss).sum::<f64>(), want, abs = 1e-12);
                }
                (Err(QuantError::Budget { requested, smallest }), None) => {
                    assert!(requested == budget && smallest > budget);
                    assert!(brute(&layers, smallest).is_some() && brute(&layers, smallest - 1).is_none());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn large_budgets_are_kept_and_nearly_used_up() {
        let mut rng = Rng::new(3);
        let layers: Vec<Vec<Choice>> = (0..200)
            .map(|_| {
                let weight = 1_000_000 + rng.below(9_000_000) as u64;
                let harm = f64::from(rng.f32_unit());
                (1..=6).map(|p| Choice { bytes: p * weight / 5, loss: harm / 9f64.powi(p as i32) }).collect()
            })
            .collect();
        let least: u64 = layers.iter().map(|l| l[0].bytes).sum();
        let budget = 2 * least;
        let bytes = |choices: &[usize]| choices.iter().zip(&layers).map(|(&c, l)| l[c].bytes).sum::<u64>();
        let got = bytes(&allocate(&layers, budget).unwrap());
        assert!(got <= budget && got as f64 > 0.97 * budget as f64, "{got} of {budget}");
        let one = |loss| vec![Choice { bytes: 1, loss }];
        assert!(matches!(allocate(&[one(0.0), vec![]], 5), Err(QuantError::NoChoices { layer: 1 })));
        let nan = allocate(&[one(0.0), one(f64::NAN)], 5);
        assert!(matches!(nan, Err(QuantError::NonFinite { index: 1, .. })));
        assert_eq!(allocate(&[], 0).unwrap(), [0usize; 0]);
    }
}
