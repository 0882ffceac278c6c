//! Kernel choices of a device: measured ones by name, and cached plans by problem, independent of both types.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// The choices of a device, shared by its clones.
#[derive(Default)]
pub struct KernelChoices {
    choices: Mutex<BTreeMap<String, String>>,
    /// Cached plans, a `HashMap<K, V>` per type of problem.
    plans: Mutex<HashMap<TypeId, Box<dyn Any + Send>>>,
}

impl fmt::Debug for KernelChoices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelChoices").field("choices", &self.choices).finish_non_exhaustive()
    }
}

impl KernelChoices {
    /// The choice for a problem.
    pub(crate) fn get(&self, problem: &str) -> Option<String> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).get(problem).cloned()
    }

    /// All choices.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds or replaces choices, and clears the cached plans.
    pub fn add(&self, more: impl IntoIterator<Item = (String, String)>) {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
        self.plans.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The cached plan of a problem, or the one that `infer` returns. The matrices of a model have few forms, and comparing the
    /// kernels for one takes the host longer than many launches.
    pub fn planned<K, V>(&self, problem: &K, infer: impl FnOnce() -> Result<V>) -> Result<V>
    where
        K: Clone + Eq + Hash + Send + 'static,
        V: Copy + Send + 'static,
    {
        /// Maximum cached problems per type, since prompts have any number of tokens.
        const MOST: usize = 4096;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let of_type = TypeId::of::<(K, V)>();
        let known = plans.get(&of_type).and_then(|of| of.downcast_ref::<HashMap<K, V>>());
        if let Some(&plan) = known.and_then(|known| known.get(problem)) {
            return Ok(plan);
        }
        let plan = infer()?;
        let all = plans.entry(of_type).or_insert_with(|| Box::new(HashMap::<K, V>::new()));
        if let Some(all) = all.downcast_mut::<HashMap<K, V>>() {
            if all.len() == MOST {
                all.clear();
            }
            all.insert(problem.clone(), plan);
        }
        Ok(plan)
    }
}
