//! The numbers of the model from measurements.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Exchange, Model};

/// `start + slope * x`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The value at 0.
    pub start: f64,
    /// The rise per unit.
    pub slope: f64,
}

/// The time of a message by its bytes: least squares of relative errors, since times of short and long messages differ a
/// thousandfold.
///
/// # Errors
///
/// Fewer than two lengths, and times that are not positive.
pub fn fit_messages(times: &[(f64, f64)]) -> Result<Line> {
    ensure!(times.iter().all(|(_, seconds)| *seconds > 0.0), "a message without time: {times:?}");
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 { times.iter().map(|&(x, y)| of(x, y) / (y * y)).sum() };
    let (n, x, y) = (sum(&|_, _| 1.0), sum(&|x, _| x), sum(&|_, y| y));
    let (xx, xy) = (sum(&|x, _| x * x), sum(&|x, y| x * y));
    let determinant = n * xx - x * x;
    ensure!(determinant > 0.0, "expected messages of at least two lengths, got {times:?}");
    Ok(Line { start: (xx * y - x * xy) / determinant, slope: (n * xy - x * y) / determinant })
}

/// The time per token, the same for all exchanges, and the time per step of each: least squares over steps of one rank, each an
/// exchange, its tokens and its seconds.
///
/// # Errors
///
/// Exchanges that have steps of one number of tokens only.
pub fn fit_steps(steps: &[(Exchange, f64, f64)]) -> Result<(f64, BTreeMap<Exchange, f64>)> {
    let mut groups: BTreeMap<Exchange, Vec<(f64, f64)>> = BTreeMap::new();
    for (exchange, tokens, seconds) in steps {
        groups.entry(*exchange).or_default().push((*tokens, *seconds));
    }
    let mean = |of: &[(f64, f64)]| {
        let sum = of.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (sum.0 / of.len() as f64, sum.1 / of.len() as f64)
    };
    let (mut both, mut squares) = (0.0, 0.0);
    for group in groups.values() {
        let (tokens, seconds) = mean(group);
        both += group.iter().map(|(x, y)| (x - tokens) * (y - seconds)).sum::<f64>();
        squares += group.iter().map(|(x, _)| (x - tokens).powi(2)).sum::<f64>();
    }
    ensure!(squares > 0.0, "expected steps of at least two numbers of tokens, got {steps:?}");
    let token = both / squares;
    let fixed = groups.into_iter().map(|(exchange, group)| {
        let (tokens, seconds) = mean(&group);
        // Noise can make it seem less than nothing.
        (exchange, (seconds - token * tokens).max(0.0))
    });
    Ok((token, fixed.collect()))
}

/// The model from messages (bytes, seconds) and steps of one rank (exchange, tokens, seconds), without a divided part.
///
/// # Errors
///
/// As [`fit_messages`] and [`fit_steps`].
pub fn fit(messages: &[(f64, f64)], steps: &[(Exchange, f64, f64)]) -> Result<Model> {
    let Line { start, slope } = fit_messages(messages)?;
    let (token, fixed) = fit_steps(steps)?;
    Ok(Model { alpha: start.max(0.0), beta: slope.max(0.0), token, fixed, divided: 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::{Place, Task};
    use trike_testkit::{Rng, assert_near};

    fn truth() -> Model {
        let fixed =
            BTreeMap::from([(Exchange::Exact, 0.02), (Exchange::Ternary, 0.035), (Exchange::Local, 0.018)]);
        Model { alpha: 8e-6, beta: 4e-10, token: 1.5e-4, fixed, divided: 0.0 }
    }

    /// Measurements of a machine of which everything is known, with noise of so much.
    fn measured(noise: f64) -> Model {
        let (mut rng, truth) = (Rng::new(7), truth());
        let mut noisy = |seconds: f64| seconds * (1.0 + noise * (2.0 * f64::from(rng.f32_unit()) - 1.0));
        let messages: Vec<(f64, f64)> = [8.0, 64.0, 1e3, 1e4, 1e5, 1e6, 1e7]
            .iter()
            .map(|&n| (n, noisy(truth.alpha + truth.beta * n)))
            .collect();
        let mut steps = Vec::new();
        for exchange in truth.fixed.keys() {
            for tokens in [512u64, 2048] {
                let task = Task { elements: 1000, tokens, largest: 0 };
                let time = truth.step(*exchange, 1, task, None, Place::ALONE, None);
                steps.push((*exchange, tokens as f64, noisy(time.total)));
            }
        }
        fit(&messages, &steps).expect("a model")
    }

    #[test]
    fn known_numbers_are_found_again() {
        let (found, truth) = (measured(0.0), truth());
        assert_near!(found.alpha, truth.alpha, rel = 1e-9);
        assert_near!(found.beta, truth.beta, rel = 1e-9);
        assert_near!(found.token, truth.token, rel = 1e-9);
        for (exchange, fixed) in &truth.fixed {
            assert_near!(found.fixed[exchange], *fixed, rel = 1e-9, "{exchange:?}");
        }
    }

    #[test]
    fn noise_changes_them_by_as_much() {
        let (found, truth) = (measured(0.02), truth());
        assert_near!(found.alpha, truth.alpha, rel = 0.04);
        assert_near!(found.beta, truth.beta, rel = 0.04);
        assert_near!(found.token, truth.token, rel = 0.06);
    }

    #[test]
    fn too_few_measurements_are_refused() {
        assert!(fit_messages(&[(8.0, 1e-5), (8.0, 2e-5)]).is_err());
        assert!(fit_messages(&[(8.0, 0.0), (9.0, 1.0)]).is_err());
        assert!(fit_steps(&[(Exchange::Exact, 512.0, 1.0), (Exchange::Local, 2048.0, 1.0)]).is_err());
    }
}
