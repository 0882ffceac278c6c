"""Hypervectors: vectors of thousands of trits that are bound, bundled and compared.

Three algebras: `z3` adds trits modulo 3, `bipolar` multiplies signs, `ternary` multiplies trits of any density. Values of two
algebras do not mix: that is a ValueError. `similarity` is 1 for equal vectors and about 0 for random ones.
"""

from trike._trike import (
    Bundle,
    Hypervector,
    ItemMemory,
    RandomProjection,
    Record,
    ScalarEncoder,
    Sequence,
    TextEncoder,
    bind,
    bind_sequence,
    bundle,
    cosine_similarity,
    dot,
    factorize,
    hamming_distance,
    max_items,
    min_dimensions,
    ordered_set,
    random_set,
    retrieval_probability,
    similarity,
    unbind,
)

__all__ = [
    "Bundle",
    "Hypervector",
    "ItemMemory",
    "RandomProjection",
    "Record",
    "ScalarEncoder",
    "Sequence",
    "TextEncoder",
    "bind",
    "bind_sequence",
    "bundle",
    "cosine_similarity",
    "dot",
    "factorize",
    "hamming_distance",
    "max_items",
    "min_dimensions",
    "ordered_set",
    "random_set",
    "retrieval_probability",
    "similarity",
    "unbind",
]
