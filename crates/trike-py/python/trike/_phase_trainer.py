"""The trainer of tritter-accel's `create_trainer`: which steps measure gradients, and what the others follow.

It computes in f32 in the order of its Rust original (vsa-optim-rs 0.1.1), so that predictions have the same bits. Two of its ways are kept
with it: a warm-up of more than ten steps never ends, and only parameters with one axis trigger a correction by their residual. The
mean prediction error of several parameters takes them in the order in which gradients are given; the original's order is random.
"""

from __future__ import annotations

from collections import deque
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

# Constants of the original.
_WINDOW = 8
_DECAY = np.float32(0.95)
_RESIDUAL = np.float32(0.5)
_LOSS_THRESHOLD = np.float32(0.1)
_LOSSES = 100

WARMUP, FULL, PREDICT, CORRECT = "WARMUP", "FULL", "PREDICT", "CORRECT"

_Gradients = Dict[str, NDArray[np.float32]]


def _power(base: np.float32, exponent: int) -> np.float32:
    """By squaring, which decides how it is rounded."""
    result = np.float32(1)
    while True:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if not exponent:
            return result
        base = base * base


def _scaled(values: NDArray[np.float32], by: float) -> NDArray[np.float32]:
    return values * np.float32(by) + np.float32(0)


class _Predictor:
    """Each element by the line of weighted least squares through its last values, and an average of what the line missed."""

    def __init__(self, shapes: Dict[str, Tuple[int, ...]], warmup: int, horizon: int) -> None:
        self.shapes, self.warmup, self.horizon = shapes, warmup, horizon
        self.history: Dict[str, List[Tuple[int, NDArray[np.float32]]]] = {name: [] for name in shapes}
        self.models: Dict[str, Tuple[NDArray[np.float32], NDArray[np.float32], int]] = {}
        self.residuals: _Gradients = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.step = self.since_fit = 0
        self.ready = False
        self.error = np.float32(0)

    def needs_correction(self) -> bool:
        if self.since_fit >= self.horizon:
            return True
        lines = (residual for residual in self.residuals.values() if residual.ndim == 1 and residual.size)
        return any(np.abs(residual).max() > _RESIDUAL for residual in lines)

    def record(self, gradients: _Gradients, is_correction: bool) -> None:
        for name, gradient in gradients.items():
            if name in self.history:
                self.history[name].append((self.step, gradient))
                del self.history[name][: -(_WINDOW + 2)]
        if not self.ready:
            if min((len(known) for known in self.history.values()), default=0) >= self.warmup:
                self.ready = True
                self._fit()
        else:
            if is_correction:
                self._update_residuals(gradients)
            self._fit()
        self.step += 1
        self.since_fit = 0

    def predict(self) -> _Gradients:
        predicted = {}
        for name in self.models:
            weight = float(_power(_DECAY, self.since_fit))
            predicted[name] = self._line(name) + _scaled(self.residuals[name], weight)
        self.step += 1
        self.since_fit += 1
        return predicted

    def _line(self, name: str) -> NDArray[np.float32]:
        base, slope, fitted = self.models[name]
        return base + _scaled(slope, float(self.step - fitted))

    def _update_residuals(self, actual: _Gradients) -> None:
        decay = float(_DECAY)
        for name, gradient in actual.items():
            if name in self.models:
                error = gradient - self._line(name)
                self.residuals[name] = _scaled(self.residuals[name], decay) + _scaled(error, 1.0 - decay)
                mean = np.abs(error).sum(dtype=np.float32) / np.float32(error.size)
                self.error = np.float32(0.9) * self.error + np.float32(0.1) * mean

    def _fit(self) -> None:
        for name, known in self.history.items():
            if len(known) < 2:
                continue
            last = known[-1][0]
            w_sum = wt_sum = wtt_sum = 0.0
            g_sum = tg_sum = None
            for age, (step, gradient) in zip(range(len(known) - 1, -1, -1), known):
                w, t = float(_power(_DECAY, age)), float(step - last)
                w_sum += w
                wt_sum += w * t
                wtt_sum += w * t * t
                g, tg = _scaled(gradient, w), _scaled(gradient, w * t)
                g_sum = g if g_sum is None else g_sum + g
                tg_sum = tg if tg_sum is None else tg_sum + tg
            det = w_sum * wtt_sum - wt_sum * wt_sum
            if abs(det) < 1e-10:
                self.models[name] = known[-1][1], np.zeros(self.shapes[name], np.float32), self.step
                continue
            base = _scaled(_scaled(g_sum, wtt_sum) - _scaled(tg_sum, wt_sum), 1.0 / det)
            slope = _scaled(_scaled(tg_sum, w_sum) - _scaled(g_sum, wt_sum), 1.0 / det)
            self.models[name] = base, slope, self.step


class DeterministicTrainer:
    """The handle of `create_trainer`."""

    def __init__(
        self, param_shapes: Sequence[Tuple[str, Sequence[int]]], warmup_steps: int, full_steps: int, predict_steps: int, correct_every: int
    ) -> None:
        given = {"warmup_steps": warmup_steps, "full_steps": full_steps, "predict_steps": predict_steps, "correct_every": correct_every}
        for name, value in given.items():
            if value < (name == "correct_every"):
                raise ValueError(f"{name}: expected a number from {int(name == 'correct_every')}, got {value}")
        self._shapes = {name: tuple(int(side) for side in shape) for name, shape in param_shapes}
        self._given = warmup_steps, full_steps, predict_steps, correct_every
        self.reset()

    def reset(self) -> None:
        warmup, self._full, self._predict, self._every = self._given
        self._predictor = _Predictor(self._shapes, warmup, self._predict)
        self.phase = WARMUP
        self._phase_step = self._total = self._cycles = 0
        self._taken = {WARMUP: 0, FULL: 0, PREDICT: 0, CORRECT: 0}
        self._losses: deque = deque(maxlen=_LOSSES)
        self._loss = np.float32(0)

    def step(self, gradients: Optional[_Gradients], loss: float) -> dict:
        self._enter(self._next())
        measured = self.phase != PREDICT
        result = {"phase": self.phase, "needs_backward": measured, "total_step": self._total, "cycle": self._cycles}
        result["predicted_gradients"] = None
        if not measured:
            result["predicted_gradients"] = self._predictor.predict()
        elif gradients is not None:
            for name, gradient in gradients.items():
                if name in self._shapes and gradient.shape != self._shapes[name]:
                    raise ValueError(f"gradients[{name!r}]: expected shape {self._shapes[name]}, got {gradient.shape}")
            self._predictor.record(gradients, self.phase == CORRECT)
        self._losses.append(np.float32(loss))
        self._loss = np.float32(loss)
        self._taken[self.phase] += 1
        self._phase_step += 1
        self._total += 1
        stats = self.stats()
        return {**result, "speedup": stats["speedup"], "mean_prediction_error": stats["mean_prediction_error"]}

    def stats(self) -> dict:
        measured = max(1, self._taken[WARMUP] + self._taken[FULL] + self._taken[CORRECT])
        return {
            "total_steps": self._total,
            "warmup_steps": self._taken[WARMUP],
            "full_steps": self._taken[FULL],
            "predict_steps": self._taken[PREDICT],
            "correct_steps": self._taken[CORRECT],
            "cycles": self._cycles,
            "speedup": float(np.float32(self._total) / np.float32(measured)),
            "mean_prediction_error": float(self._predictor.error),
            "current_loss": float(self._loss),
        }

    def _next(self) -> str:
        if self.phase == WARMUP:
            return FULL if self._predictor.ready else WARMUP
        if self.phase == FULL:
            return PREDICT if self._phase_step >= self._full else FULL
        if self.phase == CORRECT:
            return PREDICT if self._predict > self._phase_step else FULL
        if self._phase_step > 0 and self._phase_step % self._every == 0 or self._predictor.needs_correction():
            return CORRECT
        return FULL if self._phase_step >= self._predict else PREDICT

    def _enter(self, phase: str) -> None:
        before, self.phase = self.phase, phase
        if phase == before:
            return
        if phase == FULL:
            self._cycles += before != WARMUP
            self._phase_step = 0
            self._adjust()
        elif phase == PREDICT and before == FULL:
            self._phase_step = 0

    def _adjust(self) -> None:
        """More measured steps where the loss rises, fewer where it falls."""
        if len(self._losses) < 20:
            return
        losses = list(self._losses)
        early, late = (self._mean(part) for part in (losses[:10], losses[-10:]))
        if late > early * (np.float32(1) + _LOSS_THRESHOLD):
            self._full = min(self._full + 2, 30)
            self._predict = max(self._predict - 5, 5)
        elif late < early * np.float32(0.95):
            self._full = max(self._full - 1, 3)
            self._predict = min(self._predict + 3, 50)

    @staticmethod
    def _mean(losses: List[np.float32]) -> np.float32:
        total = np.float32(0)
        for loss in losses:
            total = total + loss
        return total / np.float32(10)
