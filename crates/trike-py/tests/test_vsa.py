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


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_relations(algebra):
    # The structures of z3 are made for uniform trits.
    make = vsa.Hypervector.random if algebra == "z3" else vsa.Hypervector.random_dense
    nodes = [make(DIM, 500 + at, algebra) for at in range(8)]
    memory = vsa.ItemMemory(DIM, algebra)
    for node in nodes:
        memory.add(node)
    tree = vsa.Tree(DIM, 7, algebra)
    paths = [[False], [True, False], [False, True]]
    for path, node in zip(paths, nodes):
        tree.insert(path, node)
    assert [tree.get(path, memory)[0] for path in paths] == [0, 1, 2] and tree.bundle().total == 3
    assert tree.bundle().similarity(vsa.bind(tree.path([False]), nodes[0])) == pytest.approx(1.0, abs=0.2)
    tree.remove([False], nodes[0])
    assert tree.bundle().total == 2

    graph = vsa.Graph(DIM, algebra=algebra)
    for start, end in [(0, 1), (0, 2), (2, 0), (5, 6)]:
        graph.add_edge(nodes[start], nodes[end])
    assert sorted(hit[0] for hit in graph.successors(nodes[0], memory)) == [1, 2]
    assert [hit[0] for hit in graph.predecessors(nodes[0], memory)] == [2]
    assert graph.has_edge(nodes[5], nodes[6]) > 0.5 > graph.has_edge(nodes[6], nodes[5])
    graph.remove_edge(nodes[0], nodes[1])
    assert [hit[0] for hit in graph.successors(nodes[0], memory)] == [2]
    both = vsa.Graph(DIM, directed=False, algebra=algebra)
    both.add_edge(nodes[1], nodes[2])
    if algebra == "z3":
        assert both.has_edge(nodes[2], nodes[1]) == pytest.approx(1.0)

    locked, unlocked, push, coin = nodes[0], nodes[1], nodes[2], nodes[3]
    turnstile = vsa.Automaton(DIM, algebra)
    for start, symbol, end in [(locked, push, locked), (locked, coin, unlocked), (unlocked, push, locked)]:
        turnstile.add(symbol, start, end)
    assert turnstile.next(coin, locked, memory)[0] == 1 and turnstile.next(push, unlocked, memory)[0] == 0
    assert turnstile.next(nodes[7], locked, memory) is None
    turnstile.remove(coin, locked, unlocked)
    assert turnstile.next(coin, locked, memory) is None

    basket = vsa.Multiset(DIM, algebra)
    basket.add(nodes[0], 5)
    basket.add(nodes[1])
    assert (basket.count(nodes[0]), basket.count(nodes[1]), basket.count(nodes[2]), len(basket)) == (5, 1, 0, 6)
    basket.remove(nodes[0], 5)
    assert basket.count(nodes[0]) == 0

    other = vsa.Hypervector.random(DIM, 1, ALGEBRAS[(ALGEBRAS.index(algebra) + 1) % 3])
    for call in (
        lambda: tree.insert([True], other),
        lambda: graph.add_edge(nodes[0], other),
        lambda: turnstile.next(coin, other, memory),
        lambda: basket.add(other),
    ):
        with pytest.raises(ValueError, match="one algebra"):
            call()
    with pytest.raises(ValueError, match=r"4096.*100|100.*4096"):
        graph.add_edge(nodes[0], vsa.Hypervector.random(100, 1, algebra))


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_memories_that_learn(algebra):
    encoder = vsa.TextEncoder(DIM, algebra=algebra)
    language = vsa.CentroidClassifier(DIM, 2, algebra)
    language.add_bundle(0, encoder.encode("the quick brown fox jumps over the lazy dog and the cat"))
    language.add(1, encoder.encode("der schnelle braune fuchs springt ueber den faulen hund").to_vector())
    text = encoder.encode("the dog and the fox").to_vector()
    assert language.dim == DIM and language.classify(text)[0] == 0 and language.correct(0, text) is False
    with pytest.raises(ValueError, match=r"0\.\.=1, got 2"):
        language.add(2, text)

    memory = vsa.DistributedMemory(512, 500, 0.08, 1, algebra)
    data = [vsa.Hypervector.random_dense(512, 900 + at, algebra) for at in range(4)]
    assert memory.read(data[0]) is None
    assert all(memory.write(vector, vector) > 0 for vector in data)
    assert vsa.similarity(memory.read(data[2]), data[2]) > 0.5

    words = vsa.random_set(DIM, 20, 3, algebra)
    found = vsa.ItemMemory(DIM, algebra)
    for word in words:
        found.add(word)
    record = vsa.Hierarchy(DIM, 100, 0.999, True, 7, algebra)
    probability, sufficient = record.insert((-13, 0, 5), words[3])
    record.insert((-13, 0, 6), words[4])
    assert probability > 0.999 and sufficient and len(record) == 2
    assert record.get((-13, 0, 6), found)[0] == 4 and record.key((0, 0, 0)).dim == DIM
    record.remove((-13, 0, 6), words[4])
    with pytest.raises(ValueError, match=r"-13 to 13, got \[-13, 0, 14\]"):
        record.insert((-13, 0, 14), words[0])
    with pytest.raises(ValueError, match="capacity|probab|retriev"):
        for word in words * 100:
            record.insert((0, 0, 0), word)


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
