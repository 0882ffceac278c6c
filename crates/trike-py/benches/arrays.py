"""Times of products and hypervectors beside NumPy and PyTorch, in one run: the median of turns that take all rivals in order.

    python benches/arrays.py [threads]
"""

import platform
import statistics
import sys
import time

import numpy as np

import trike
from trike import vsa

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 0
TURNS = 15


def table(title, rivals):
    """Prints the median time of each, and the ratio to the first."""
    times = {name: [] for name in rivals}
    for call in rivals.values():
        call()
    for _ in range(TURNS):
        for name, call in rivals.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(all_times) for name, all_times in times.items()}
    ours = next(iter(medians.values()))
    print(f"{title}:")
    for name, seconds in medians.items():
        print(f"  {name:<24} {1e6 * seconds:>10.1f} us  {seconds / ours:>6.1f} times")


def main():
    if THREADS:
        trike.set_threads(THREADS)
    print(platform.platform(), trike.cpu_info())
    try:
        import torch
    except ImportError:
        torch = None
        print("skipped: no PyTorch")
    else:
        torch.set_num_threads(trike.cpu_info()["threads"])
    rng = np.random.default_rng(1)
    n = 4096
    trits = rng.integers(-1, 2, (n, n)).astype(np.int8)
    tensor = trike.TritTensor(trits, np.ones(n, np.float32), encoding="2bit")
    dense = tensor.to_numpy()
    for tokens in (1, 64):
        x = rng.normal(size=(tokens, n)).astype(np.float32)
        rivals = {
            "trike int8": lambda x=x: tensor.matmul(x, precision="int8"),
            "trike f32": lambda x=x: tensor.matmul(x),
            "numpy f32": lambda x=x: x @ dense.T,
        }
        if torch is not None:
            w, t = torch.from_numpy(dense), torch.from_numpy(x)
            codes = torch.from_numpy(trits)
            rivals["torch f32"] = lambda t=t, w=w: t @ w.T
            if tokens > 16:
                small = torch.randint(-127, 128, (tokens, n), dtype=torch.int8)
                rivals["torch int8"] = lambda a=small, b=codes: torch._int_mm(a, b.T)
        table(f"{n} x {n}, {tokens} tokens", rivals)
    a, b = (vsa.Hypervector.random(10_000, seed) for seed in (1, 2))
    x, y = a.to_numpy(), b.to_numpy()
    table("binding, 10,000 dimensions", {"trike": lambda: vsa.bind(a, b), "numpy": lambda: (x + y + 1) % 3 - 1})
    f, g = x.astype(np.float32), y.astype(np.float32)
    table("dot, 10,000 dimensions", {"trike": lambda: vsa.dot(a, b), "numpy f32": lambda: f @ g})
    memory = vsa.ItemMemory(10_000)
    many = vsa.random_set(10_000, 1000, 3)
    for vector in many:
        memory.add(vector)
    rows = np.stack([vector.to_numpy() for vector in many]).astype(np.float32)
    table("nearest of 1,000", {"trike": lambda: memory.search(a), "numpy f32": lambda: (rows @ f).argmax()})


main()
