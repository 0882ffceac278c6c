//! Parts and traffic of ranks.

use serde::Serialize;
use trike::{
    comm::Traffic,
    llm::{RankPlan, RankPlans},
};

/// The ranks of a text; part of the schema of `trike run --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RanksOutcome {
    division: &'static str,
    /// Bytes of activations sent by all ranks per decoded token.
    bytes_per_token: u64,
    /// Traffic of rank 0 for the text.
    sent_bytes: u64,
    received_bytes: u64,
    waiting_seconds: f64,
    each: Vec<RankOutcome>,
}

/// Part of a rank.
#[derive(Debug, Serialize)]
struct RankOutcome {
    host: String,
    first_layer: usize,
    layers: usize,
    /// Bytes of weights.
    weights: u64,
    cache: u64,
    scratch: u64,
    total: u64,
    available: Option<u64>,
}

impl RanksOutcome {
    /// The outcome, with the traffic between two readings.
    pub(super) fn new(plans: &RankPlans, before: Traffic, after: Traffic) -> Self {
        Self {
            division: plans.division().name(),
            bytes_per_token: plans.division().bytes_per_token(),
            sent_bytes: after.sent - before.sent,
            received_bytes: after.received - before.received,
            waiting_seconds: (after.waiting - before.waiting).as_secs_f64(),
            each: plans.ranks().iter().map(RankOutcome::of).collect(),
        }
    }
}

impl RankOutcome {
    fn of(rank: &RankPlan) -> Self {
        let RankPlan { host, layers, plan, available, .. } = rank;
        Self {
            host: host.clone(),
            first_layer: layers.start,
            layers: layers.len(),
            weights: plan.weights,
            cache: plan.cache,
            scratch: plan.scratch,
            total: plan.total(),
            available: *available,
        }
    }
}
