"""The random numbers of tritter-accel: ChaCha with 8 rounds, seeded and read as Rust's crates rand 0.8 and rand_chacha 0.3 do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Blocks computed at once: 4 MB of state.
_BLOCKS = 1 << 16
_WORDS = 16
_U32 = np.uint32
_QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _key(seed: int) -> list[int]:
    """A key from a number of 64 bits, by PCG32 (O'Neill, 2014)."""
    state, key = seed, []
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) % 2**64
        mixed = ((state >> 18 ^ state) >> 27) % 2**32
        turn = state >> 59
        key.append((mixed >> turn | mixed << (32 - turn)) % 2**32)
    return key


class ChaCha8:
    """The words of ChaCha8 (Bernstein, 2008) in order."""

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**64:
            raise OverflowError(f"seed: expected a number of 64 bits, got {seed}")
        self._key = _key(seed)
        self._next_block = 0
        self._left = np.empty(0, _U32)

    def words(self, count: int) -> NDArray[np.uint32]:
        """The next words."""
        parts = [self._left]
        have = self._left.size
        while have < count:
            blocks = min(_BLOCKS, -(-(count - have) // _WORDS))
            parts.append(self._blocks(blocks))
            have += blocks * _WORDS
        words = np.concatenate(parts)
        self._left = words[count:].copy()
        return words[:count]

    def floats(self, count: int) -> NDArray[np.float32]:
        """Numbers from 0 up to 1: the upper 24 bits of each word."""
        return (self.words(count) >> _U32(8)).astype(np.float32) * np.float32(2**-24)

    def _blocks(self, count: int) -> NDArray[np.uint32]:
        numbers = np.arange(self._next_block, self._next_block + count, dtype=np.uint64)
        self._next_block += count
        start = np.zeros((_WORDS, count), _U32)
        start[:4] = np.frombuffer(b"expand 32-byte k", "<u4")[:, None]
        start[4:12] = np.array(self._key, _U32)[:, None]
        start[12] = (numbers & np.uint64(0xFFFFFFFF)).astype(_U32)
        start[13] = (numbers >> np.uint64(32)).astype(_U32)
        state = start.copy()

        def add(to: int, value: int, mixed: int, turn: int) -> None:
            state[to] += state[value]
            state[mixed] ^= state[to]
            state[mixed] = state[mixed] << _U32(turn) | state[mixed] >> _U32(32 - turn)

        for _ in range(4):
            for a, b, c, d in _QUARTERS:
                add(a, b, d, 16)
                add(c, d, b, 12)
                add(a, b, d, 8)
                add(c, d, b, 7)
        return (state + start).T.reshape(-1)
