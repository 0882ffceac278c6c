//! Quantization grid of a group of weights.

use trike_trit::{Coupling, MAX_DEPTH};

/// Quantization grid of a group of weights: the scale of each plane and the mean.
///
/// A weight is stored as a code, the balanced ternary number of its trits: `code = sum t_p 3^(depth - 1 - p)`. With tied
/// planes the value is `mean + step * code`, evenly spaced; with free planes it is `mean + sum scale_p t_p`, one of up to
/// `3^depth` unevenly spaced values.
///
/// ```
/// use trike_quant::Grid;
///
/// let grid = Grid::tied(2, 0.5, 0.0);
/// assert_eq!(grid.scales(), [1.5, 0.5]);
/// let code = grid.nearest(1.1);
/// assert_eq!((code, grid.value(code), Grid::trits(code, 2)), (2, 1.0, [1, -1, 0, 0, 0, 0]));
/// // Clamped to the last level: 4 = (1, 1).
/// assert_eq!(grid.nearest(9.0), 4);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    scales: [f32; MAX_DEPTH],
    depth: usize,
    mean: f32,
    coupling: Coupling,
    /// For two or more free planes: `(value, code)` of all levels, sorted by value. Otherwise empty.
    levels: Vec<(f32, i16)>,
}

impl Grid {
    /// The largest code of `depth` planes: 1, 4, 13, 40, 121, 364.
    pub const fn max_code(depth: usize) -> i16 {
        (3i16.pow(depth as u32) - 1) / 2
    }

    /// Tied planes with evenly spaced values, `step` apart.
    ///
    /// # Panics
    ///
    /// Unless `depth` is 1 to 6; options are validated at the entry points of the crate.
    pub fn tied(depth: usize, step: f32, mean: f32) -> Self {
        let mut scales = [0.0; MAX_DEPTH];
        for (p, scale) in scales[..depth].iter_mut().enumerate() {
            *scale = step * 3f32.powi((depth - 1 - p) as i32);
        }
        Self { scales, depth, mean, coupling: Coupling::Tied, levels: Vec::new() }
    }

    /// Free planes, each with its own scale.
    ///
    /// # Panics
    ///
    /// Unless there are 1 to 6 scales.
    pub fn free(plane_scales: &[f32], mean: f32) -> Self {
        let depth = plane_scales.len();
        let mut scales = [0.0; MAX_DEPTH];
        scales[..depth].copy_from_slice(plane_scales);
        let mut grid = Self { scales, depth, mean, coupling: Coupling::Free, levels: Vec::new() };
        if depth > 1 {
            let most = Self::max_code(depth);
            grid.levels = (-most..=most).map(|code| (grid.value(code), code)).collect();
            // Of equal values, the code with the fewest nonzero trits is kept, so that the value 0 has the code 0.
            grid.levels.sort_by(|a, b| {
                let weight = |code| Self::trits(code, depth).iter().filter(|t| **t != 0).count();
                a.0.total_cmp(&b.0).then_with(|| weight(a.1).cmp(&weight(b.1))).then(a.1.cmp(&b.1))
            });
            grid.levels.dedup_by_key(|level| level.0);
        }
        grid
    }

    /// The scale of each plane; with tied planes, each is a third of the previous one.
    pub fn scales(&self) -> &[f32] {
        &self.scales[..self.depth]
    }

    /// Number of planes.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The offset of all values.
    pub fn mean(&self) -> f32 {
        self.mean
    }

    /// The coupling of the planes.
    pub fn coupling(&self) -> Coupling {
        self.coupling
    }

    /// The distance between neighbouring values of tied planes; with free planes, the scale of the last plane.
    pub fn step(&self) -> f32 {
        self.scales[self.depth - 1]
    }

    /// The trits of a code, most significant first; those past `depth` are 0.
    pub fn trits(code: i16, depth: usize) -> [i8; MAX_DEPTH] {
        let mut trits = [0; MAX_DEPTH];
        let mut rest = code;
        for trit in trits[..depth].iter_mut().rev() {
            *trit = ((rest + 1).rem_euclid(3) - 1) as i8;
            rest = (rest - i16::from(*trit)) / 3;
        }
        trits
    }

    /// The value of a code.
    #[inline]
    pub fn value(&self, code: i16) -> f32 {
        if self.coupling == Coupling::Tied || self.depth == 1 {
            return self.mean + self.step() * f32::from(code);
        }
        let trits = Self::trits(code, self.depth);
        self.scales().iter().zip(trits).fold(self.mean, |sum, (scale, t)| sum + scale * f32::from(t))
    }

    /// The code of the value nearest to `w`. Ties go to the even code on an evenly spaced grid, otherwise to the lower value. 0
    /// if the step is 0.
    #[inline]
    pub fn nearest(&self, w: f32) -> i16 {
        if self.coupling == Coupling::Tied || self.depth == 1 {
            let step = self.step();
            if step == 0.0 {
                return 0;
            }
            let most = f32::from(Self::max_code(self.depth));
            return ((w - self.mean) / step).round_ties_even().clamp(-most, most) as i16;
        }
        let after = self.levels.partition_point(|level| level.0 < w);
        match (self.levels.get(after.wrapping_sub(1)), self.levels.get(after)) {
            (Some(below), Some(above)) if w - below.0 <= above.0 - w => below.1,
            (_, Some(above)) => above.1,
            (Some(below), None) => below.1,
            (None, None) => 0,
        }
    }

    /// The codes of the neighbouring values below and above `w`, and the relative position of `w` between them, 0 to 1.
    pub(crate) fn between(&self, w: f32) -> (i16, i16, f32) {
        if self.coupling == Coupling::Tied || self.depth == 1 {
            let step = self.step();
            if step == 0.0 {
                return (0, 0, 0.0);
            }
            let most = f32::from(Self::max_code(self.depth));
            let at = ((w - self.mean) / step).clamp(-most, most);
            let below = at.floor();
            return (below as i16, (below + 1.0).min(most) as i16, at - below);
        }
        let after = self.levels.partition_point(|level| level.0 < w);
        match (self.levels.get(after.wrapping_sub(1)), self.levels.get(after)) {
            (Some(&(a, below)), Some(&(b, above))) => (below, above, (w - a) / (b - a)),
            (Some(&(_, code)), None) | (None, Some(&(_, code))) => (code, code, 0.0),
            (None, None) => (0, 0, 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    #[test]
    fn codes_are_balanced_ternary() {
        for depth in 1..=MAX_DEPTH {
            let most = Grid::max_code(depth);
            for code in -most..=most {
                let trits = Grid::trits(code, depth);
                let back = trits[..depth].iter().fold(0i16, |sum, &t| 3 * sum + i16::from(t));
                assert_eq!(back, code, "{depth}: {trits:?}");
                assert!(trits.iter().all(|t| (-1..=1).contains(t)) && trits[depth..].iter().all(|&t| t == 0));
            }
        }
    }

    #[test]
    fn the_nearest_is_the_nearest() {
        let grids = [
            Grid::tied(1, 0.7, 0.1),
            Grid::tied(3, 0.3, -0.2),
            Grid::free(&[1.0, 0.9, 0.05], 0.3),
            Grid::free(&[2.0], 0.0),
        ];
        for grid in grids {
            let most = Grid::max_code(grid.depth());
            for i in -400..400 {
                let w = i as f32 * 0.0137;
                let best = (-most..=most).map(|c| (grid.value(c) - w).abs()).fold(f32::INFINITY, f32::min);
                let got = (grid.value(grid.nearest(w)) - w).abs();
                assert!(got <= best + 1e-6, "{grid:?} {w}: {got} {best}");
                let (a, b, share) = grid.between(w);
                let mixed = grid.value(a) * (1.0 - share) + grid.value(b) * share;
                let inside = w.clamp(grid.value(grid.nearest(-1e9)), grid.value(grid.nearest(1e9)));
                assert_near!(mixed, inside, abs = 1e-5, "{grid:?} {w}");
            }
        }
    }

    #[test]
    fn a_grid_of_nothing_has_code_zero() {
        assert_eq!(Grid::tied(2, 0.0, 0.5).nearest(7.0), 0);
        let grid = Grid::free(&[0.0, 0.0], 0.5);
        assert_eq!((grid.nearest(7.0), grid.nearest(-7.0), grid.value(0)), (0, 0, 0.5));
    }
}
