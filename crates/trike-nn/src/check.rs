//! Shape checks of the operations, written once for every backend.

use trike_trit::{Edit, TritTensor};

use crate::{AttentionSpec, CacheSpec, NnError, StepInputs};

/// Rows and width of a tensor.
pub type Shape = (usize, usize);

fn same(what: &'static str, expected: usize, got: usize) -> Result<(), NnError> {
    if expected == got { Ok(()) } else { Err(NnError::Shape { what, expected, got }) }
}

fn whole_heads(width: usize, head_dim: usize) -> Result<(), NnError> {
    if head_dim != 0 && width.is_multiple_of(head_dim) {
        Ok(())
    } else {
        Err(NnError::Heads { width, head_dim })
    }
}

/// Upload of `values` values as rows of `width`.
///
/// # Errors
///
/// [`NnError::Rows`] unless `values` is a nonzero multiple of `width`.
pub fn upload(values: usize, width: usize) -> Result<(), NnError> {
    if values != 0 && width != 0 && values.is_multiple_of(width) {
        Ok(())
    } else {
        Err(NnError::Rows { values, width })
    }
}

/// Edits of a resident matrix, with the edited tensor.
///
/// # Errors
///
/// [`NnError::Trit`] for a position outside the tensor.
pub fn edit(edits: &[Edit], edited: &TritTensor) -> Result<(), NnError> {
    for edit in edits {
        edited.get(edit.plane, edit.row, edit.col)?;
    }
    Ok(())
}

/// Lookup of a step's ids in a table of `vocab` rows.
///
/// # Errors
///
/// [`NnError::Shape`] for a step without ids, [`NnError::Token`] for an id past the last row.
pub fn embed(inputs: &StepInputs, vocab: usize) -> Result<(), NnError> {
    same("ids of a step", inputs.rows(), inputs.ids().len())?;
    match inputs.ids().iter().find(|&&id| id as usize >= vocab) {
        Some(&id) => Err(NnError::Token { id, vocab }),
        None => Ok(()),
    }
}

/// An RMSNorm of rows of `width`.
///
/// # Errors
///
/// [`NnError::Shape`].
pub fn norm(width: usize, weights: usize) -> Result<(), NnError> {
    same("width of a norm", width, weights)
}

/// An RMSNorm of every head of rows of `width`.
///
/// # Errors
///
/// [`NnError::Heads`].
pub fn head_norm(width: usize, head_dim: usize) -> Result<(), NnError> {
    whole_heads(width, head_dim)
}

/// A bias on rows of `width`.
///
/// # Errors
///
/// [`NnError::Shape`].
pub fn bias(width: usize, bias: usize) -> Result<(), NnError> {
    same("width of a bias", width, bias)
}

/// A linear layer with `cols` inputs, on rows of `width`.
///
/// # Errors
///
/// [`NnError::Shape`].
pub fn linear(cols: usize, width: usize) -> Result<(), NnError> {
    same("input width of a linear layer", cols, width)
}

/// Addition of two tensors.
///
/// # Errors
///
/// [`NnError::Shape`].
pub fn add(x: Shape, y: Shape) -> Result<(), NnError> {
    same("rows of an addend", x.0, y.0)?;
    same("width of an addend", x.1, y.1)
}

/// A gated activation of two projections.
///
/// # Errors
///
/// [`NnError::Shape`].
pub fn gated(gate: Shape, up: Shape) -> Result<(), NnError> {
    same("rows of an up projection", gate.0, up.0)?;
    same("width of an up projection", gate.1, up.1)
}

/// Rotary embedding of every head of `x`.
///
/// # Errors
///
/// [`NnError::Shape`] unless the step has one position per row, [`NnError::Heads`].
pub fn rope(x: Shape, head_dim: usize, inputs: &StepInputs) -> Result<(), NnError> {
    same("rows of a rotary embedding", inputs.rows(), x.0)?;
    whole_heads(x.1, head_dim)
}

/// Attention of a step over the KV caches of its sequences.
///
/// # Errors
///
/// [`NnError::Shape`].
pub fn attention<'a>(
    spec: &AttentionSpec,
    [q, k, v]: [Shape; 3],
    inputs: &StepInputs,
    caches: impl ExactSizeIterator<Item = &'a CacheSpec>,
) -> Result<(), NnError> {
    let kv_width = spec.kv_heads * spec.head_dim;
    same("width of queries", spec.heads * spec.head_dim, q.1)?;
    same("width of keys", kv_width, k.1)?;
    same("width of values", kv_width, v.1)?;
    for (rows, _) in [q, k, v] {
        same("rows of attention", inputs.rows(), rows)?;
    }
    same("caches of a step", inputs.segments().len(), caches.len())?;
    for cache in caches {
        same("key/value heads of a cache", spec.kv_heads, cache.kv_heads)?;
        same("head_dim of a cache", spec.head_dim, cache.head_dim)?;
    }
    Ok(())
}

/// Selection of rows of a tensor with `count` rows.
///
/// # Errors
///
/// [`NnError::Row`] for a row past the last.
pub fn select_rows(count: usize, rows: &[usize]) -> Result<(), NnError> {
    match rows.iter().find(|&&row| row >= count) {
        Some(&row) => Err(NnError::Row { row, rows: count }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Eviction, KeySelector, KvPrecision, PromptKeys};

    #[test]
    fn every_operation_refuses_by_name() {
        let mut inputs = StepInputs::default();
        inputs.push(&[1, 2, 3], 0, None).expect("three tokens");
        let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 1.0, window: None };
        let (precision, keys) = (KvPrecision::F32, KeySelector::All);
        let prompt_keys = PromptKeys::All;
        let eviction = Eviction::Never;
        let cache =
            CacheSpec { kv_heads: 2, head_dim: 8, capacity: 9, precision, keys, prompt_keys, eviction };
        let fits = [(3, 32), (3, 16), (3, 16)];
        let attend = |shapes, caches: &[CacheSpec]| attention(&spec, shapes, &inputs, caches.iter());
        for good in [
            upload(6, 3),
            embed(&inputs, 4),
            norm(5, 5),
            head_norm(64, 16),
            rope((3, 64), 16, &inputs),
            attend(fits, &[cache]),
            select_rows(4, &[3, 0]),
        ] {
            good.expect("shapes that fit");
        }
        let table = [
            (upload(7, 3), "expected one or more rows of 3 values, got 7 values"),
            (upload(0, 3), "expected one or more rows of 3 values, got 0 values"),
            (embed(&inputs, 3), "token id 3 is outside the vocabulary of 3"),
            (norm(5, 4), "width of a norm: expected 5, got 4"),
            (head_norm(67, 64), "width 67 is not a multiple of head_dim 64"),
            (head_norm(67, 0), "width 67 is not a multiple of head_dim 0"),
            (bias(5, 4), "width of a bias: expected 5, got 4"),
            (linear(5, 4), "input width of a linear layer: expected 5, got 4"),
            (add((2, 5), (2, 4)), "width of an addend: expected 5, got 4"),
            (add((2, 5), (1, 5)), "rows of an addend: expected 2, got 1"),
            (gated((2, 5), (2, 6)), "width of an up projection: expected 5, got 6"),
            (rope((2, 64), 16, &inputs), "rows of a rotary embedding: expected 3, got 2"),
            (attend([(3, 31), (3, 16), (3, 16)], &[cache]), "width of queries: expected 32, got 31"),
            (attend([(3, 32), (2, 16), (3, 16)], &[cache]), "rows of attention: expected 3, got 2"),
            (attend(fits, &[]), "caches of a step: expected 1, got 0"),
            (attend(fits, &[CacheSpec { head_dim: 4, ..cache }]), "head_dim of a cache: expected 8, got 4"),
            (select_rows(4, &[0, 4]), "row 4 is out of range: the tensor has 4 rows"),
        ];
        for (refused, want) in table {
            assert_eq!(refused.expect_err(want).to_string(), want);
        }
    }
}
