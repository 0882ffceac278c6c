//! Optimizers: AdamW, Muon for the matrices of the blocks, and gradient descent.

mod muon;

use std::borrow::{Borrow, BorrowMut};

use serde::{Deserialize, Serialize};
use trike_autodiff::{AdamW, Elements, TapeEngine};
use trike_core::{Bounds, OptionError};
use trike_nn::WeightName;

use crate::model::zeros;
use crate::schedule::ScheduleFactors;
use crate::{Parameter, Parameters, TrainError};

pub(crate) use muon::orthogonal;

/// Algorithm of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// AdamW (Loshchilov and Hutter, 1711.05101).
    #[default]
    AdamW,
    /// Muon for the matrices of the blocks: orthogonalized momentum (Jordan et al., 2024), scaled to the magnitude of AdamW's
    /// updates (2502.16982). All other parameters use AdamW.
    Muon,
    /// Gradient descent with momentum.
    Sgd,
}

/// Constants of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerConfig {
    /// The optimizer algorithm.
    pub kind: OptimizerKind,
    /// Learning rate, more than 0.
    pub learning_rate: f32,
    /// Decay rate of the first moment, from 0 to below 1.
    pub beta1: f32,
    /// Decay rate of the second moment, from 0 to below 1.
    pub beta2: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay of matrices, multiplied by the learning rate; norms and biases do not decay.
    pub weight_decay: f32,
    /// Momentum of Muon and of gradient descent, from 0 to below 1.
    pub momentum: f32,
    /// Maximum global gradient norm: larger gradients are scaled down to it. 0 disables clipping.
    pub max_grad_norm: f32,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::AdamW,
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            momentum: 0.95,
            max_grad_norm: 1.0,
        }
    }
}

impl OptimizerConfig {
    /// Checks that all numbers are in range.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        let below_one =
            |field, value: f32| OptionError::check(field, Bounds::at_least(0.0).at_most(0.999_999), value);
        OptionError::check("learning_rate", Bounds::over(0.0).at_most(10.0), self.learning_rate)?;
        below_one("beta1", self.beta1)?;
        below_one("beta2", self.beta2)?;
        below_one("momentum", self.momentum)?;
        OptionError::check("epsilon", Bounds::over(0.0).at_most(1.0), self.epsilon)?;
        OptionError::check("weight_decay", Bounds::at_least(0.0).at_most(10.0), self.weight_decay)?;
        OptionError::check(
            "max_grad_norm",
            Bounds::at_least(0.0).at_most(f64::from(f32::MAX)),
            self.max_grad_norm,
        )
    }
}

/// Orthogonalizes the momenta of matrices, of which this rank may hold only some rows; each update comes with the number of rows of
/// its whole matrix.
type Orthogonal<'o, T> = dyn Fn(&[&Parameter<T>], Vec<T>) -> Result<Vec<(T, usize)>, TrainError> + 'o;

/// How Muon's updates are computed.
pub(crate) struct Updates<'o, T> {
    /// Number of matrices whose updates are computed together, at least 1.
    pub(crate) together: usize,
    pub(crate) orthogonal: &'o Orthogonal<'o, T>,
}

/// An optimizer with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer<T = Vec<f32>> {
    config: OptimizerConfig,
    /// Steps taken.
    steps: u64,
    /// First moment of each parameter, or its momentum; none for parameters that another rank updates.
    pub(crate) first: Vec<Option<T>>,
    /// Second moment; none for parameters with momentum.
    pub(crate) second: Vec<Option<T>>,
}

impl Optimizer {
    /// A new optimizer on the host.
    ///
    /// # Errors
    ///
    /// As [`OptimizerConfig::validate`].
    pub fn new(config: OptimizerConfig, parameters: &Parameters) -> Result<Self, OptionError> {
        config.validate()?;
        let second = |parameter: &Parameter| match has_momentum(&config, parameter.name) {
            true => None,
            false => Some(vec![0.0; parameter.values.len()]),
        };
        let second = parameters.all().iter().map(second).collect();
        let first = parameters.zeros().into_iter().map(Some).collect();
        Ok(Self { config, steps: 0, first, second })
    }
}

impl<T: Elements> Optimizer<T> {
    /// A new optimizer with its moments in the memory of an executor.
    ///
    /// # Errors
    ///
    /// [`TrainError::Option`] as [`OptimizerConfig::validate`], and [`TrainError::Grad`] of the executor.
    pub fn on<E: TapeEngine<Tensor = T>>(
        engine: &E,
        config: OptimizerConfig,
        parameters: &Parameters<T>,
    ) -> Result<Self, TrainError> {
        Self::of(engine, config, parameters, &|_| true)
    }

    /// [`on`](Self::on) for the parameters selected by `owns`; the rest have no moments.
    pub(crate) fn of<E: TapeEngine<Tensor = T>>(
        engine: &E,
        config: OptimizerConfig,
        parameters: &Parameters<T>,
        owns: &dyn Fn(usize) -> bool,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (place, parameter) in parameters.all().iter().enumerate() {
            let mean = |has: bool| has.then(|| zeros(engine, parameter.values.elements())).transpose();
            first.push(mean(owns(place))?);
            second.push(mean(owns(place) && !has_momentum(&config, parameter.name))?);
        }
        Ok(Self { config, steps: 0, first, second })
    }

    /// Whether the parameter has a second moment, on the rank that updates it.
    pub(crate) fn has_second(&self, name: WeightName) -> bool {
        !has_momentum(&self.config, name)
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Restores the state of a checkpoint, whose lengths were checked.
    pub(crate) fn restore(&mut self, steps: u64, first: Vec<Option<T>>, second: Vec<Option<T>>) {
        (self.steps, self.first, self.second) = (steps, first, second);
    }

    /// Bytes of the state.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * self.first.iter().chain(&self.second).flatten().map(Elements::elements).sum::<usize>()
    }

    /// Updates the parameters with `gradients`, which have their shapes. Returns the global gradient norm before clipping.
    ///
    /// # Errors
    ///
    /// [`TrainError::NonFinite`] when that norm is not finite, or its square after clipping; nothing is changed then.
    /// [`TrainError::Grad`] of the executor.
    pub fn step<E: TapeEngine<Tensor = T>>(
        &mut self,
        engine: &E,
        parameters: &mut Parameters<T>,
        gradients: &[T],
        factors: ScheduleFactors,
    ) -> Result<f64, TrainError>
    where
        T: BorrowMut<E::View>,
    {
        let all: Vec<&E::View> = gradients.iter().map(Borrow::borrow).collect();
        let squares = engine.sum_of_squares(&all)?;
        let all: Vec<Option<&E::View>> = all.into_iter().map(Some).collect();
        self.step_by(engine, parameters, &all, squares, factors)
    }

    /// [`step`](Self::step) for the parameters with a gradient on this rank; `squares` is the sum of squares of all gradients.
    pub(crate) fn step_by<E: TapeEngine<Tensor = T>>(
        &mut self,
        engine: &E,
        parameters: &mut Parameters<T>,
        gradients: &[Option<&E::View>],
        squares: f64,
        factors: ScheduleFactors,
    ) -> Result<f64, TrainError>
    where
        T: BorrowMut<E::View>,
    {
        let orthogonal = |parameters: &[&Parameter<T>], ahead: Vec<T>| {
            let each = parameters.iter().zip(ahead);
            let each = each
                .map(|(parameter, ahead)| Ok((orthogonal(engine, ahead, parameter.cols)?, parameter.rows())));
            each.collect()
        };
        let updates = Updates { together: 1, orthogonal: &orthogonal };
        self.step_as(engine, parameters, gradients, squares, factors, &updates)
    }

    /// [`step_by`](Self::step_by) with another computation of Muon's updates.
    pub(crate) fn step_as<E: TapeEngine<Tensor = T>>(
        &mut self,
        engine: &E,
        parameters: &mut Parameters<T>,
        gradients: &[Option<&E::View>],
        squares: f64,
        factors: ScheduleFactors,
        updates: &Updates<'_, T>,
    ) -> Result<f64, TrainError>
    where
        T: BorrowMut<E::View>,
    {
        let config = self.config;
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return Err(TrainError::NonFinite { what: "gradient", step: self.steps });
        }
        let most = f64::from(config.max_grad_norm);
        let limit = if most > 0.0 && norm > most { (most / norm) as f32 } else { 1.0 };
        // No element exceeds the norm, so the second moment is and stays finite, too.
        if norm * f64::from(limit) > f64::from(f32::MAX).sqrt() {
            return Err(TrainError::NonFinite { what: "square of the gradient", step: self.steps });
        }
        self.steps += 1;
        let rate = config.learning_rate * factors.rate;
        // Bias corrections of moments that start at zero.
        let power = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let [correct1, correct2] = [config.beta1, config.beta2].map(|beta| 1.0 - f64::from(beta).powi(power));
        let means = self.first.iter_mut().zip(&mut self.second);
        let mut waiting = Vec::new();
        for ((parameter, gradient), (first, second)) in
            parameters.all_mut().iter_mut().zip(gradients).zip(means)
        {
            let (Some(gradient), Some(first)) = (*gradient, first) else { continue };
            let first: &mut E::View = first.borrow_mut();
            let decays = !parameter.name.is_vector();
            let kept = if decays { 1.0 - rate * config.weight_decay * factors.decay } else { 1.0 };
            if let Some(second) = second {
                let step = AdamW {
                    limit,
                    beta1: config.beta1,
                    beta2: config.beta2,
                    epsilon: config.epsilon,
                    rate: (f64::from(rate) / correct1) as f32,
                    correction: correct2 as f32,
                    kept,
                };
                let means = [first, second.borrow_mut()];
                engine.adamw(&step, parameter.values.borrow_mut(), gradient, means)?;
                continue;
            }
            engine.add_momentum(config.momentum, limit, first, gradient)?;
            if config.kind == OptimizerKind::Sgd {
                engine.descend(kept, rate, parameter.values.borrow_mut(), first)?;
                continue;
            }
            // Nesterov momentum: the gradient is added once more.
            let mut ahead = engine.allocate(gradient.elements())?;
            engine.momentum(config.momentum, limit, first, gradient, ahead.borrow_mut())?;
            waiting.push((parameter, ahead));
            if waiting.len() == updates.together {
                updates.descend(engine, std::mem::take(&mut waiting), [kept, rate])?;
            }
        }
        if !waiting.is_empty() {
            let kept = 1.0 - rate * config.weight_decay * factors.decay;
            updates.descend(engine, waiting, [kept, rate])?;
        }
        Ok(norm)
    }
}

impl<T: Elements> Updates<'_, T> {
    fn descend<E: TapeEngine<Tensor = T>>(
        &self,
        engine: &E,
        waiting: Vec<(&mut Parameter<T>, T)>,
        [kept, rate]: [f32; 2],
    ) -> Result<(), TrainError>
    where
        T: BorrowMut<E::View>,
    {
        let (mut parameters, ahead): (Vec<&mut Parameter<T>>, Vec<T>) = waiting.into_iter().unzip();
        let views: Vec<&Parameter<T>> = parameters.iter().map(|parameter| &**parameter).collect();
        let found = (self.orthogonal)(&views, ahead)?;
        for (parameter, (update, rows)) in parameters.iter_mut().zip(found) {
            let scale = rate * muon::scale(rows, parameter.cols);
            engine.descend(kept, scale, parameter.values.borrow_mut(), update.borrow())?;
        }
        Ok(())
    }
}

/// Whether a parameter has a momentum instead of two moments.
fn has_momentum(config: &OptimizerConfig, name: WeightName) -> bool {
    match config.kind {
        OptimizerKind::AdamW => false,
        OptimizerKind::Muon => name.is_block_matrix(),
        OptimizerKind::Sgd => true,
    }
}

#[cfg(test)]
mod tests {
    use trike_cpu::Cpu;
    use trike_nn::DecoderSpec;
    use trike_testkit::{assert_all_near, assert_near};

    use super::*;

    const FULL: ScheduleFactors = ScheduleFactors { rate: 1.0, decay: 1.0 };

    fn parameters() -> Parameters {
        Parameters::random(&DecoderSpec { tied_head: true, ..DecoderSpec::llama(8, 1, 2, 10) }, 1)
            .expect("parameters")
    }

    fn filled(parameters: &Parameters, value: f32) -> Vec<Vec<f32>> {
        parameters.all().iter().map(|p| vec![value; p.values.len()]).collect()
    }

    /// AdamW's first step is the sign of the gradient, whatever its magnitude.
    #[test]
    fn the_first_step_has_the_size_of_the_rate() {
        let cpu = Cpu::new(1).expect("a cpu");
        for size in [1e-4, 1.0, 1e4] {
            let (before, mut after) = (parameters(), parameters());
            let config =
                OptimizerConfig { weight_decay: 0.0, max_grad_norm: 0.0, ..OptimizerConfig::default() };
            let mut optimizer = Optimizer::new(config, &after).expect("an optimizer");
            let norm = optimizer.step(&cpu, &mut after, &filled(&before, size), FULL).expect("a step");
            let want = f64::from(size) * (before.count() as f64).sqrt();
            assert_near!(norm, want, rel = 1e-3);
            for (a, b) in before.all().iter().zip(after.all()) {
                for (a, b) in a.values.iter().zip(&b.values) {
                    assert_near!(a - b, 1e-3, abs = 2e-6);
                }
            }
        }
    }

    #[test]
    fn gradients_are_limited_together_and_vectors_do_not_decay() {
        let cpu = Cpu::new(1).expect("a cpu");
        let config = OptimizerConfig { epsilon: 1.0, max_grad_norm: 1.0, ..OptimizerConfig::default() };
        let run = |size: f32, config: OptimizerConfig| {
            let mut all = parameters();
            let gradients = filled(&all, size);
            Optimizer::new(config, &all)
                .expect("an optimizer")
                .step(&cpu, &mut all, &gradients, FULL)
                .expect("a step");
            all
        };
        let (once, ten) = (run(1.0, config), run(10.0, config));
        for (one, ten) in once.all().iter().zip(ten.all()) {
            assert_all_near!(&one.values, &ten.values, abs = 1e-7, "{}", one.name);
        }
        let still = run(0.0, config);
        for (before, after) in parameters().all().iter().zip(still.all()) {
            let kept = if before.name.is_vector() { 1.0 } else { 1.0 - 1e-4 };
            let want: Vec<f32> = before.values.iter().map(|v| v * kept).collect();
            assert_all_near!(&after.values, &want, abs = 1e-7);
        }
    }

    #[test]
    fn muon_updates_have_the_size_of_those_of_adamw() {
        let cpu = Cpu::new(1).expect("a cpu");
        let config =
            OptimizerConfig { kind: OptimizerKind::Muon, weight_decay: 0.0, ..OptimizerConfig::default() };
        let (before, mut after) = (parameters(), parameters());
        let mut optimizer = Optimizer::new(config, &after).expect("an optimizer");
        assert!(optimizer.bytes() < 8 * after.count());
        let gradients: Vec<Vec<f32>> = before.all().iter().map(|p| p.values.clone()).collect();
        optimizer.step(&cpu, &mut after, &gradients, FULL).expect("a step");
        let place = before.place(WeightName::Query(0)).expect("it is there");
        let change: f64 = before.all()[place]
            .values
            .iter()
            .zip(&after.all()[place].values)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum();
        // A root mean square of 0.2 of the rate per element, as in the paper.
        let rms = (change / 64.0).sqrt();
        assert!((1.2e-4..2.8e-4).contains(&rms), "{rms}");
    }

    #[test]
    fn gradient_descent_follows_the_momentum() {
        let cpu = Cpu::new(1).expect("a cpu");
        let config = OptimizerConfig {
            kind: OptimizerKind::Sgd,
            learning_rate: 0.5,
            momentum: 0.5,
            weight_decay: 0.0,
            max_grad_norm: 0.0,
            ..OptimizerConfig::default()
        };
        let (before, mut after) = (parameters(), parameters());
        let mut optimizer = Optimizer::new(config, &after).expect("an optimizer");
        assert_eq!(optimizer.bytes(), 4 * after.count());
        for gradient in [1.0, 2.0] {
            optimizer.step(&cpu, &mut after, &filled(&before, gradient), FULL).expect("a step");
        }
        for (a, b) in before.all().iter().zip(after.all()) {
            // 0.5 * 1, then 0.5 * (0.5 + 2).
            let want: Vec<f32> = a.values.iter().map(|v| v - 1.75).collect();
            assert_all_near!(&b.values, &want, abs = 1e-6, "{}", a.name);
        }
    }

    #[test]
    fn what_is_not_finite_changes_nothing() {
        let cpu = Cpu::new(1).expect("a cpu");
        let mut all = parameters();
        let mut optimizer = Optimizer::new(OptimizerConfig::default(), &all).expect("an optimizer");
        let (before, state) = (all.clone(), optimizer.clone());
        let mut gradients = filled(&all, 1.0);
        gradients[2][3] = f32::NAN;
        let refused = optimizer.step(&cpu, &mut all, &gradients, FULL);
        assert!(matches!(refused, Err(TrainError::NonFinite { step: 0, .. })));
        assert_eq!((&all, optimizer), (&before, state));
        // Finite with an infinite square: without clipping it would stay in the second moment for ever.
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon, OptimizerKind::Sgd] {
            let (mut all, gradients) = (parameters(), filled(&before, 1e30));
            let config = OptimizerConfig { kind, max_grad_norm: 0.0, ..OptimizerConfig::default() };
            let mut optimizer = Optimizer::new(config, &all).expect("an optimizer");
            let state = optimizer.clone();
            let refused = optimizer.step(&cpu, &mut all, &gradients, FULL);
            let Err(TrainError::NonFinite { what: "square of the gradient", .. }) = refused else {
                panic!("{kind:?}: {refused:?}")
            };
            assert_eq!((&all, optimizer), (&before, state), "{kind:?}");
            let limited = OptimizerConfig { max_grad_norm: 1.0, ..config };
            let mut optimizer = Optimizer::new(limited, &all).expect("an optimizer");
            optimizer.step(&cpu, &mut all, &gradients, FULL).expect("a step");
            assert!(all.all().iter().flat_map(|p| &p.values).all(|v| v.is_finite()), "{kind:?}");
        }
        let wrong = OptimizerConfig { beta2: 1.0, ..OptimizerConfig::default() };
        assert!(wrong.validate().is_err());
    }
}
