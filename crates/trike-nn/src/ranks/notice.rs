//! The message by which rank 0 announces a step.

use crate::{Eviction, KeySelector, KvPrecisions, KvSpec, NnError, PromptKeys, StepNotice};

/// The first byte of a notice, and the message that ends a run.
const STEP: u8 = 1;
pub(super) const END: &[u8] = &[0];
/// Bytes of a notice before the ids.
const HEAD: usize = 1 + 8 + 8 + 8 + 8 + 1 + 1 + 8 + 2 + 1 + KvPrecisions::BYTES;

/// The message: one byte each for kind, rows, result and eviction, eight for a number, [`KvPrecisions::BYTES`] for the precisions,
/// four for an id.
pub(super) fn message(step: &StepNotice<'_>) -> Vec<u8> {
    // Window 0 encodes no window; a rolling cache has at least 1.
    let window = step.spec.window.unwrap_or(0);
    let mut message = Vec::with_capacity(HEAD + 4 * step.ids.len());
    message.push(STEP);
    message.extend(step.sequence.to_le_bytes());
    for number in [step.spec.capacity, window, step.position] {
        message.extend((number as u64).to_le_bytes());
    }
    message.push(u8::from(step.all_rows));
    message.push(u8::from(step.states));
    // Top-k 0 encodes all keys; a selection has at least 1.
    let top_k = step.spec.keys.top_k().unwrap_or(0);
    message.extend((top_k as u64).to_le_bytes());
    message.extend(step.spec.prompt_keys.thousandths().to_le_bytes());
    message.push(Eviction::ALL.iter().position(|one| *one == step.spec.eviction).unwrap_or(0) as u8);
    message.extend(step.spec.precision.to_bytes());
    for id in &*step.ids {
        message.extend(id.to_le_bytes());
    }
    message
}

/// Decodes a message; `None` for the end of the run.
///
/// # Errors
///
/// [`NnError::Notice`] for anything else.
pub(super) fn read(message: &[u8]) -> Result<Option<StepNotice<'static>>, NnError> {
    let wrong = || NnError::Notice { got: message.len() };
    if message == END {
        return Ok(None);
    }
    let (head, ids) = message.split_at_checked(HEAD).ok_or_else(wrong)?;
    let number = |at: usize| -> u64 {
        head[at..at + 8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let size = |at: usize| usize::try_from(number(at)).map_err(|_| wrong());
    let flag = |at: usize| match head[at] {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(wrong()),
    };
    let precision = head[HEAD - KvPrecisions::BYTES..].try_into().ok().and_then(KvPrecisions::from_bytes);
    let precision = precision.ok_or_else(wrong)?;
    let (ids, rest) = ids.as_chunks::<4>();
    if head[0] != STEP || !rest.is_empty() || ids.is_empty() {
        return Err(wrong());
    }
    let window = Some(size(17)?).filter(|&window| window > 0);
    let keys = KeySelector::signs(size(35)?).unwrap_or_default();
    let thousandths = u16::from_le_bytes([head[43], head[44]]);
    let prompt_keys = PromptKeys::of_thousandths(thousandths).ok_or_else(wrong)?;
    let eviction = *Eviction::ALL.get(usize::from(head[45])).ok_or_else(wrong)?;
    Ok(Some(StepNotice {
        sequences: 1,
        sequence: number(1),
        spec: KvSpec { precision, capacity: size(9)?, window, keys, prompt_keys, eviction },
        position: size(25)?,
        ids: ids.iter().map(|id| u32::from_le_bytes(*id)).collect(),
        all_rows: flag(33)?,
        states: flag(34)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvPrecision;

    #[test]
    fn a_notice_is_read_back_and_nothing_else() {
        let (signs, quarter) = (KeySelector::signs(300).unwrap(), PromptKeys::sampled(0.25).unwrap());
        let plain = (None, false, false, KeySelector::All, PromptKeys::All, Eviction::Never);
        let other = (Some(7), true, true, signs, quarter, Eviction::Unattended);
        for (window, all_rows, states, keys, prompt_keys, eviction) in [plain, other] {
            let precision = KvPrecisions::of_layers(&[KvPrecision::Int8Int4, KvPrecision::F16]).unwrap();
            let notice = StepNotice {
                sequences: 1,
                sequence: u64::MAX - 3,
                spec: KvSpec { precision, capacity: 512, window, keys, prompt_keys, eviction },
                position: 1 << 33,
                ids: vec![3, u32::MAX].into(),
                all_rows,
                states,
            };
            let message = message(&notice);
            assert_eq!(read(&message), Ok(Some(notice)));
            for len in 0..message.len() {
                // Without its last id, a notice is still valid.
                let is_whole = len == message.len() - 4;
                assert_eq!(read(&message[..len]).is_ok(), is_whole, "{len}");
            }
            for at in [0, 33, 34, 44, 45, 46] {
                let mut other = message.clone();
                other[at] = 9;
                assert!(read(&other).is_err(), "{at}");
            }
        }
        assert_eq!(read(END), Ok(None));
    }
}
