"""A record of three facts in one hypervector, and a search among a thousand."""

from trike import vsa

DIM = 10_000
names = ["country", "capital", "currency"]
keys = dict(zip(names, vsa.random_set(DIM, 3, seed=1)))
memory, words = vsa.ItemMemory(DIM), ["Norway", "Oslo", "krone"] + [f"word {i}" for i in range(997)]
for vector in vsa.random_set(DIM, len(words), seed=2):
    memory.add(vector)

record = vsa.bundle([vsa.bind(key, memory.get(at)) for at, key in enumerate(keys.values())])
for name, key in keys.items():
    index, _, similarity = memory.search(vsa.unbind(record, key))[0]
    print(f"{name}: {words[index]} (similarity {similarity:.2f})")
    assert words[index] == words[names.index(name)]

print("items that a bundle of this size holds:", vsa.max_items(DIM, candidates=1000, probability=0.99))
