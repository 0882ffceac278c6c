//! Unstable internals for the tests in `tests/it`; not part of the interface.
//!
//! The tests are a separate crate, because a library with unit tests is compiled twice, and this one takes long.

pub use crate::device::guarded;
pub use crate::error::{check_range, unsupported};
pub use crate::plan::spread;
pub use crate::probe::MAX_ROUNDS;
pub use crate::tuning::KernelChoices;

/// Of [`attention`](crate::attention).
pub mod attention {
    pub use crate::attention::codes::{KvCodesForm, UNITS, values_of};
    pub use crate::attention::positions::MAX_POSITION;
}

/// Of [`grad`](crate::grad).
pub mod grad {
    pub use crate::grad::settings::{SUM_UNITS, each, per_cube};

    /// Of attention over documents.
    pub mod attention {
        pub use crate::grad::attention::{AttentionGradForm, AttentionGradShape, settings};
    }
}

/// Of [`linear`](crate::linear).
pub mod linear {
    pub use crate::linear::edit::changes;
    pub use crate::linear::quantize::{Codes, quantize};
    pub use crate::linear::tune::{MAGIC, VERSION};

    /// Of dense matrices.
    pub mod dense {
        pub use crate::linear::dense::{halves, pack};
    }

    /// Of sparse matrices.
    pub mod sparse {
        pub use crate::linear::sparse_matrix::{form_of, list, map};
    }

    /// Of ternary matrices.
    pub mod ternary {
        pub use crate::linear::ternary::{Packed, form_of, pack, without_zeros};
    }
}
