//! Associated types and the name of a backend.

/// Associated types of a backend, and its name.
pub trait BackendBase {
    /// Activations, `tokens x width`.
    type Tensor;

    /// A resident weight matrix.
    type Matrix;

    /// A resident vector: the weights of a norm, or a bias.
    type Vector;

    /// Precomputed frequencies of a rotary embedding.
    type Rope;

    /// Cached keys and values of one layer of one sequence.
    type Cache;

    /// The inputs of a step in the backend's memory.
    type Inputs;

    /// Per-sequence state of the backend besides the KV caches, such as a recorded step.
    type Recorded: Default;

    /// Name for reports, such as `cpu` with its instruction set.
    fn name(&self) -> String;
}
