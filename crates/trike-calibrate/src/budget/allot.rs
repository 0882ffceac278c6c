//! Choice of the storage of each layer.

use trike_quant::{Choice, QuantError, allocate};

use crate::{Plan, PlannedLayer, Sensitivity, StoredKind};

/// Reason of a plan for leaving a layer dense.
pub(crate) const NO_ROOM: &str = "no ternary choice fits the budget";

/// The choices with the smallest total loss within `budget` bytes.
pub(crate) fn solve(sensitivities: &[Sensitivity], budget: u64) -> Result<Vec<usize>, QuantError> {
    let lists: Vec<Vec<Choice>> = sensitivities
        .iter()
        .map(|s| s.choices.iter().map(|c| Choice { bytes: c.bytes, loss: c.kl }).collect())
        .collect();
    allocate(&lists, budget)
}

/// The choices with the fewest bytes whose expected loss is at most `loss`.
pub(crate) fn solve_loss(sensitivities: &[Sensitivity], loss: f64) -> Result<Vec<usize>, QuantError> {
    let extreme = |pick: fn(u64, u64) -> u64| -> u64 {
        let of = |s: &Sensitivity| s.choices.iter().map(|c| c.bytes).reduce(pick).unwrap_or(0);
        sensitivities.iter().map(of).sum()
    };
    let (mut low, mut high) = (extreme(u64::min), extreme(u64::max));
    while high - low > (high / 2048).max(1) {
        let middle = low + (high - low) / 2;
        match totals(sensitivities, &solve(sensitivities, middle)?).1 <= loss {
            true => high = middle,
            false => low = middle,
        }
    }
    solve(sensitivities, high)
}

/// Total bytes and expected loss of some choices.
pub(crate) fn totals(sensitivities: &[Sensitivity], chosen: &[usize]) -> (u64, f64) {
    let picked = sensitivities.iter().zip(chosen).map(|(s, &c)| &s.choices[c]);
    picked.fold((0, 0.0), |(bytes, kl), c| (bytes + c.bytes, kl + c.kl))
}

/// The plan for some choices. A layer that stays dense gets a reason with the loss of its best ternary choice.
pub(crate) fn plan(sensitivities: &[Sensitivity], chosen: &[usize], made_for: String) -> Plan {
    let (_, loss) = totals(sensitivities, chosen);
    let mut layers = Vec::new();
    for (sensitivity, &chosen) in sensitivities.iter().zip(chosen) {
        let choice = &sensitivity.choices[chosen];
        let mut stored = choice.stored.clone();
        if stored.kind == StoredKind::Dense {
            let others = sensitivity.choices.iter().filter(|c| c.stored.kind != StoredKind::Dense);
            if let Some(best) = others.min_by(|a, b| a.kl.total_cmp(&b.kl)) {
                stored.reason = Some(format!(
                    "{NO_ROOM}: the closest, {}, alone costs {:.2e} nats per token, all other layers together {loss:.2e}",
                    best.stored, best.kl
                ));
            }
        }
        layers.push(PlannedLayer { name: sensitivity.layer.clone(), stored });
    }
    Plan::new(made_for, layers)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trike_trit::{Granularity, GroupSize};

    use super::*;
    use crate::{LayerChoice, Measured, Stored};

    fn group(name: &str, harm: f64) -> Sensitivity {
        let trits = |planes, bytes, kl| Measured {
            stored: Stored::of(&LayerChoice::Trits {
                planes,
                granularity: Granularity::Group(GroupSize::G64),
            }),
            bytes,
            kl,
        };
        let dense = LayerChoice::Dense { reason: NO_ROOM.to_owned() };
        Sensitivity {
            layer: name.to_owned(),
            weights: 100,
            choices: vec![
                trits(1, 20, harm),
                trits(2, 40, harm / 8.0),
                trits(3, 60, harm / 64.0),
                Measured { stored: Stored::of(&dense), bytes: 400, kl: 0.0 },
            ],
        }
    }

    #[test]
    fn what_hurts_gets_planes() {
        let groups = [group("calm", 0.1), group("touchy", 10.0)];
        let chosen = solve(&groups, 80).unwrap();
        assert_eq!(chosen, [0, 2]);
        assert_eq!(totals(&groups, &chosen).0, 80);
        assert!(solve(&groups, 39).unwrap_err().to_string().contains("40"));
        // The fewest bytes within a loss, without a byte to spare.
        let chosen = solve_loss(&groups, 0.3).unwrap();
        assert_eq!((chosen, totals(&groups, &[0, 2]).1 <= 0.3), (vec![0, 2], true));
        assert_eq!(solve_loss(&groups, 0.0).unwrap(), [3, 3]);
        let plan = plan(&groups, &[0, 3], "a test".to_owned());
        assert_eq!(plan.layers.len(), 2);
        let reason = plan.layers[1].stored.reason.clone().unwrap();
        assert!(reason.contains("3 planes/64") && reason.contains("1.56e-1"), "{reason}");
        assert_eq!(Plan::parse(Path::new("p"), &plan.to_json()).unwrap(), plan);
    }
}
