"""Hypervectors against NumPy, in every algebra."""

import numpy as np
import pytest

from trike import vsa

ALGEBRAS = ["z3", "bipolar", "ternary"]
DIM = 4096


def mod3(values):
    return (values.astype(np.int16) + 1) % 3 - 1


def bound(algebra, a, b):
    return mod3(a.astype(np.int16) + b) if algebra == "z3" else a * b


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_the_algebra(algebra):
    a, b = (vsa.Hypervector.random_dense(DIM, seed, algebra) for seed in (1, 2))
    x, y = a.to_numpy(), b.to_numpy()
    assert a.dim == len(a) == DIM and a.algebra == algebra and x.dtype == np.int8
    np.testing.assert_array_equal(vsa.bind(a, b).to_numpy(), bound(algebra, x, y))
    assert a * b == vsa.bind(a, b) and hash(a * b) == hash(vsa.bind(a, b))
    assert vsa.unbind(vsa.bind(a, b), b) == a
    assert vsa.bind(a, a.inverse()) == vsa.Hypervector.identity(DIM, algebra)
    np.testing.assert_array_equal((-a).to_numpy(), -x)
    np.testing.assert_array_equal(a.permute(5).to_numpy(), np.roll(x, 5))
    assert vsa.dot(a, b) == int(x.astype(int) @ y)
    assert vsa.hamming_distance(a, b) == (x != y).sum()
    cosine = (x.astype(float) @ y) / np.linalg.norm(x.astype(float)) / np.linalg.norm(y.astype(float))
    assert vsa.cosine_similarity(a, b) == pytest.approx(cosine)
    assert vsa.similarity(a, a) == pytest.approx(1.0)
    assert a[0] == x[0] and a[-1] == x[-1] and vsa.Hypervector(x, algebra) == a


@pytest.mark.parametrize("algebra", ALGEBRAS)
@pytest.mark.parametrize("k", [3, 15])
def test_similarity_to_a_bundle_falls_with_the_root(algebra, k):
    vectors = vsa.random_set(20_000, k, 7, algebra)
    total = vsa.bundle(vectors)
    similar = np.mean([vsa.similarity(total, v) for v in vectors])
    assert 0.4 / np.sqrt(k) < similar < 1.2 / np.sqrt(k)
    counts = vsa.Bundle(20_000, algebra)
    for vector in vectors:
        counts.add(vector)
    assert counts.to_vector() == total and counts.total == k
    np.testing.assert_array_equal(counts.sums(), sum(v.to_numpy().astype(np.int32) for v in vectors))
    assert counts.similarity(vectors[0]) == pytest.approx(1.0, abs=0.2)
    for vector in vectors[1:]:
        counts.remove(vector)
    assert counts.to_vector() == vectors[0]
    assert vsa.bundle(vectors, weights=[5] + [0] * (k - 1)) == vectors[0]


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_memories_and_structures(algebra, tmp_path):
    names, values = vsa.random_set(DIM, 4, 1, algebra), vsa.random_set(DIM, 20, 2, algebra)
    keys = [vsa.Hypervector.random_dense(DIM, 100 + at, algebra) for at in range(4)]
    memory = vsa.ItemMemory(DIM, algebra)
    assert [memory.add(value) for value in values] == list(range(20)) and len(memory) == 20
    hits = memory.search(values[7], 3)
    assert hits[0][0] == 7 and hits[0][2] == pytest.approx(1.0) and hits[0][1] >= hits[1][1]
    record = vsa.Record(DIM, algebra)
    for at, key in enumerate(keys):
        record.insert(key, values[at])
    assert [record.get(key, memory)[0] for key in keys] == [0, 1, 2, 3]
    record.remove(keys[0], values[0])
    assert len(record) == 3
    sequence = vsa.Sequence(DIM, algebra)
    for value in values[:4]:
        sequence.push(value)
    assert [sequence.get(at, memory)[0] for at in range(4)] == [0, 1, 2, 3]
    memory.save(tmp_path / "memory")
    again = vsa.ItemMemory.load(tmp_path / "memory", algebra)
    assert again.get(5) == memory.get(5)
    other = ALGEBRAS[(ALGEBRAS.index(algebra) + 1) % 3]
    with pytest.raises(ValueError, match=algebra):
        vsa.ItemMemory.load(tmp_path / "memory", other)
    with pytest.raises(ValueError, match="one algebra"):
        memory.search(vsa.Hypervector.random(DIM, 1, other))
    assert memory.cleanup(names[0], 0.5) is None and memory.cleanup(values[3], 0.5) == values[3]
    assert vsa.bind_sequence(values[:3]) != vsa.bind_sequence(values[2::-1])


def test_factorize():
    books = []
    for seed in (1, 2):
        book = vsa.ItemMemory(DIM)
        for vector in vsa.random_set(DIM, 8, seed):
            book.add(vector)
        books.append(book)
    product = vsa.bind(books[0].get(3), books[1].get(6))
    assert vsa.factorize(product, books)[0::2] == ([3, 6], True)


def test_encoders_and_sets():
    encoder = vsa.ScalarEncoder(DIM, 0.0, 10.0, 11)
    assert encoder.decode(encoder.encode(7.0)) == pytest.approx(7.0)
    projection = vsa.RandomProjection(16, DIM)
    x = np.random.default_rng(1).normal(size=16).astype(np.float32)
    assert vsa.similarity(projection.encode(x), projection.encode(x + np.float32(0.01))) > 0.8
    with pytest.raises(ValueError, match=r"input: expected shape \(16,\), got \(3,\)"):
        projection.encode(x[:3])
    text = vsa.TextEncoder(DIM)
    same, other = (text.encode(t).to_vector() for t in ("the cat sat on the mat", "zyxwvutsrqponmlkjihgf"))
    assert vsa.similarity(text.encode("the cat sat on a mat").to_vector(), same) > vsa.similarity(same, other)
    for kind in ("level", "circular", "thermometer"):
        assert len(vsa.ordered_set(kind, DIM, 5)) == 5


def test_capacity():
    most = vsa.max_items(10_000, 1000, 0.99)
    assert vsa.retrieval_probability(10_000, most, 1000) >= 0.99 > vsa.retrieval_probability(10_000, most + 1, 1000)
    assert vsa.min_dimensions(most, 1000, 0.99) <= 10_000
