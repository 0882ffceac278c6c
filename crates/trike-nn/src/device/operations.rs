//! The operations of a decoder on a device.

use std::sync::Arc;

use trike_cube::linear::{ActivationShape, Activations, CubeTernaryMatrix};
use trike_cube::ops::{self, CubeRopeTable, Indices, RowInput};
use trike_cube::{Buffer, Strategy};
use trike_trit::Hadamard;

use super::matrices::Kind;
use super::recordings::can_find;
use super::tensors::Ids;
use super::{CubeBackend, CubeInputs, CubeMatrix, CubeRope, CubeTensor};
use crate::backend::Input;
use crate::{ActivationPrecision, Largest, NnError, check};

/// Rows and columns of an input, after checking that its tensors have one shape.
fn shape_of(input: &Input<'_, CubeBackend>) -> Result<check::Shape, NnError> {
    let (x, norm) = match input {
        Input::Plain(x) => (x, None),
        Input::Normed(x, norm) => (x, Some(norm)),
        Input::Gated { gate, up, norm, .. } => {
            check::gated(gate.shape(), up.shape())?;
            (gate, norm.as_ref())
        }
    };
    norm.map_or(Ok(()), |norm| check::norm(x.width, norm.weight.len()))?;
    Ok(x.shape())
}

/// The tensors of an input, and its norm.
fn rows_of<'a>(input: &Input<'a, CubeBackend>) -> (RowInput<'a>, Option<ops::RowNorm<'a>>) {
    let (rows, norm) = match input {
        Input::Plain(x) => (RowInput::Plain(&x.buffer), None),
        Input::Normed(x, norm) => (RowInput::Plain(&x.buffer), Some(norm)),
        Input::Gated { gate, up, activation, norm } => {
            let activation = *activation;
            (RowInput::Gated { gate: &gate.buffer, up: &up.buffer, activation }, norm.as_ref())
        }
    };
    (rows, norm.map(|norm| ops::RowNorm { weight: norm.weight, eps: norm.eps }))
}

/// Properties of quantized activations that depend on the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CodesKind {
    precision: ActivationPrecision,
    rotation: Option<Hadamard>,
}

impl CubeBackend {
    /// The activation format that a ternary matrix requires.
    fn codes_of(&self, weight: &CubeMatrix) -> CodesKind {
        let rotation = match &weight.0 {
            Kind::Ternary { packed, .. } => packed.rotation(),
            Kind::Sparse { .. } | Kind::Dense(_) => None,
        };
        CodesKind { precision: self.activations.precision(weight.group()), rotation }
    }

    /// Quantized activations for a ternary layer, directly from the tensors of `input`.
    fn codes(&self, input: &Input<'_, Self>, kind: CodesKind) -> Result<Activations, NnError> {
        let (rows, norm) = rows_of(input);
        let (tokens, cols) = shape_of(input)?;
        let shape = ActivationShape { tokens, cols, precision: kind.precision };
        let codes = Activations::empty(&self.device, shape)?.with_rotation(kind.rotation)?;
        self.device.quantize(rows, norm, &codes, &Strategy::Inferred)?;
        Ok(codes)
    }

    /// `input` quantized and multiplied, when no other operation uses the codes.
    fn quantized_product(
        &self,
        input: &Input<'_, Self>,
        weight: &CubeMatrix,
        packed: &CubeTernaryMatrix,
        outs: &[&Buffer<f32>],
        add: bool,
    ) -> Result<(), NnError> {
        let (rows, norm) = rows_of(input);
        let precision = self.codes_of(weight).precision;
        let inferred = Strategy::Inferred;
        match add {
            true => self.device.quantized_linear_add(rows, norm, precision, packed, outs, &inferred)?,
            false => self.device.quantized_linear(rows, norm, precision, packed, outs, &inferred)?,
        }
        Ok(())
    }

    /// The activations for `weight`: the most recent ones, if their format matches.
    fn shared_codes<'c>(
        &self,
        last: &'c mut Option<(CodesKind, Activations)>,
        input: &Input<'_, Self>,
        weight: &CubeMatrix,
    ) -> Result<&'c Activations, NnError> {
        let kind = self.codes_of(weight);
        let made = match last.take() {
            Some((of, codes)) if of == kind => codes,
            _ => self.codes(input, kind)?,
        };
        Ok(&last.insert((kind, made)).1)
    }

    /// `input` evaluated in floats; `None` if it is already a tensor.
    fn floats(&self, input: &Input<'_, Self>) -> Result<Option<CubeTensor>, NnError> {
        Ok(match input {
            Input::Plain(_) => None,
            Input::Normed(x, norm) => Some(self.norm(x, norm.weight, norm.eps)?),
            Input::Gated { gate, up, activation, norm: None } => {
                let out = self.tensor(gate.rows(), gate.width)?;
                self.device.gated(&gate.buffer, &up.buffer, *activation, &out.buffer, &Strategy::Inferred)?;
                Some(out)
            }
            Input::Gated { gate, up, activation, norm: Some(norm) } => {
                let out = self.tensor(gate.rows(), gate.width)?;
                let activation = *activation;
                let rows = RowInput::Gated { gate: &gate.buffer, up: &up.buffer, activation };
                let norm = ops::RowNorm { weight: norm.weight, eps: norm.eps };
                self.device.rms_norm(rows, norm, &out.buffer, &Strategy::Inferred)?;
                Some(out)
            }
        })
    }

    pub(super) fn look_up(&self, table: &CubeMatrix, inputs: &CubeInputs) -> Result<CubeTensor, NnError> {
        let (vocab, width) = table.shape();
        check::embed(&inputs.host, vocab)?;
        let ids = inputs.host.ids();
        match &table.0 {
            Kind::Dense(table) => {
                let out = self.tensor(ids.len(), width)?;
                let ids = match &inputs.ids {
                    Some(Ids::Table(ids)) => ids.clone(),
                    _ => {
                        self.traffic.uploaded(size_of_val(ids));
                        // A table has fewer than 2^32 rows.
                        Indices::upload(&self.device, ids, vocab as u32)?
                    }
                };
                self.device.lookup(table, &ids, &out.buffer, &Strategy::Inferred)?;
                Ok(out)
            }
            Kind::Ternary { .. } | Kind::Sparse { .. } => {
                let host = table.host_table()?;
                if let Some(Ids::Rows { rows, .. }) = &inputs.ids {
                    return Ok(CubeTensor { buffer: rows.clone(), width });
                }
                let rows: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
                let values = host.select_rows(&rows)?.dequantize();
                self.upload_tensor(&values, width)
            }
        }
    }

    /// An RMSNorm of every group of `weight.len()` elements.
    pub(super) fn norm(&self, x: &CubeTensor, weight: &Buffer<f32>, eps: f32) -> Result<CubeTensor, NnError> {
        let out = self.tensor(x.rows(), x.width)?;
        let norm = ops::RowNorm { weight, eps };
        self.device.rms_norm(RowInput::Plain(&x.buffer), norm, &out.buffer, &Strategy::Inferred)?;
        Ok(out)
    }

    pub(super) fn products(
        &self,
        input: Input<'_, Self>,
        weights: &[&CubeMatrix],
    ) -> Result<Vec<CubeTensor>, NnError> {
        let (tokens, cols) = shape_of(&input)?;
        let (mut codes, mut floats) = (None, None);
        let mut outs: Vec<Option<CubeTensor>> = weights.iter().map(|_| None).collect();
        for i in 0..weights.len() {
            check::linear(weights[i].shape().1, cols)?;
            match &weights[i].0 {
                // Already computed together with an earlier matrix.
                _ if outs[i].is_some() => {}
                Kind::Ternary { packed, .. } => {
                    let parts = packed.form().parts.iter();
                    let made = parts.map(|&rows| self.tensor(tokens, rows)).collect::<Result<Vec<_>, _>>()?;
                    let buffers: Vec<_> = made.iter().map(|out| &out.buffer).collect();
                    let is_part = |other: &&CubeMatrix| matches!(&other.0, Kind::Ternary { packed: other, .. } if Arc::ptr_eq(packed, other));
                    if weights.iter().all(is_part) {
                        self.quantized_product(&input, weights[i], packed, &buffers, false)?;
                    } else {
                        let x = self.shared_codes(&mut codes, &input, weights[i])?;
                        self.device.linear(x, packed, &buffers, &Strategy::Inferred)?;
                    }
                    let mut made: Vec<_> = made.into_iter().map(Some).collect();
                    for (weight, out) in weights.iter().zip(&mut outs).skip(i) {
                        match &weight.0 {
                            Kind::Ternary { packed: other, part, .. }
                                if Arc::ptr_eq(packed, other) && out.is_none() =>
                            {
                                // Each part is taken once: a matrix requested twice is computed twice.
                                *out = made[*part].take();
                            }
                            _ => {}
                        }
                    }
                }
                Kind::Sparse { matrix, .. } => {
                    let x = self.shared_codes(&mut codes, &input, weights[i])?;
                    let out = self.tensor(tokens, matrix.form().rows)?;
                    self.device.sparse(x, matrix, &out.buffer, &Strategy::Inferred)?;
                    outs[i] = Some(out);
                }
                Kind::Dense(matrix) => {
                    if floats.is_none() {
                        floats = self.floats(&input)?;
                    }
                    let out = self.tensor(tokens, matrix.rows())?;
                    let x = match (&floats, &input) {
                        (Some(made), _) => made,
                        (None, Input::Plain(x) | Input::Normed(x, _) | Input::Gated { gate: x, .. }) => x,
                    };
                    self.device.dense(&x.buffer, matrix, &out.buffer, &Strategy::Inferred)?;
                    outs[i] = Some(out);
                }
            }
        }
        Ok(outs.into_iter().flatten().collect())
    }

    pub(super) fn add_product(
        &self,
        input: Input<'_, Self>,
        weight: &CubeMatrix,
        to: &mut CubeTensor,
    ) -> Result<(), NnError> {
        let (tokens, cols) = shape_of(&input)?;
        let (rows, width) = weight.shape();
        check::linear(width, cols)?;
        check::add(to.shape(), (tokens, rows))?;
        match &weight.0 {
            Kind::Ternary { packed, .. } if packed.form().parts.len() == 1 => {
                self.quantized_product(&input, weight, packed, &[&to.buffer], true)?;
            }
            Kind::Sparse { matrix, .. } => {
                let codes = self.codes(&input, self.codes_of(weight))?;
                self.device.sparse_add(&codes, matrix, &to.buffer, &Strategy::Inferred)?;
            }
            Kind::Ternary { .. } => {
                for out in self.products(input, &[weight])? {
                    self.device.add(&to.buffer, &out.buffer, &Strategy::Inferred)?;
                }
            }
            Kind::Dense(matrix) => {
                let made = self.floats(&input)?;
                let x = match (&made, &input) {
                    (Some(made), _) => made,
                    (None, Input::Plain(x) | Input::Normed(x, _) | Input::Gated { gate: x, .. }) => x,
                };
                self.device.dense_add(&x.buffer, matrix, &to.buffer, &Strategy::Inferred)?;
            }
        }
        Ok(())
    }

    pub(super) fn rotate(
        &self,
        x: &mut CubeTensor,
        rope: &CubeRope,
        inputs: &CubeInputs,
    ) -> Result<(), NnError> {
        let table = self.rope_table(x, rope, inputs)?;
        let positions = &inputs.at(self.index).positions;
        Ok(self.device.rope(&x.buffer, rope.head_dim, positions, &table, &Strategy::Inferred)?)
    }

    /// The table of a rotation, long enough for the positions of the step.
    pub(super) fn rope_table(
        &self,
        x: &CubeTensor,
        rope: &CubeRope,
        inputs: &CubeInputs,
    ) -> Result<CubeRopeTable, NnError> {
        check::rope(x.shape(), rope.head_dim, &inputs.host)?;
        let needed = inputs.host.positions().iter().max().map_or(0, |&last| last as usize + 1);
        rope.table(self, needed)
    }

    pub(super) fn select(&self, x: &CubeTensor, rows: &[usize]) -> Result<CubeTensor, NnError> {
        check::select_rows(x.rows(), rows)?;
        let out = self.tensor(rows.len(), x.width)?;
        // A buffer has fewer than 2^32 elements.
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        self.traffic.uploaded(size_of_val(&rows[..]));
        let rows = Indices::upload(&self.device, &rows, x.rows() as u32)?;
        self.device.select_rows(&x.buffer, x.width, &rows, &out.buffer)?;
        Ok(out)
    }

    pub(super) fn find_top(&self, x: &CubeTensor, k: usize) -> Result<Option<Vec<Largest>>, NnError> {
        if !can_find(k, x.width) {
            return Ok(None);
        }
        let values = self.device.empty(x.rows() * k)?;
        let ids = self.device.top(&x.buffer, x.width, k, &values, &Strategy::Inferred)?;
        let (ids, values) = ids.read_with(&self.device, &values)?;
        self.traffic.read(size_of_val(&ids[..]) + size_of_val(&values[..]));
        let pairs: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
        Ok(Some(pairs.chunks_exact(k).map(<[_]>::to_vec).collect()))
    }
}
