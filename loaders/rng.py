"""Random numbers as a function of what they are for, instead of when they are asked for.

A number is the hash of its address: ``(seed, epoch, index, ...)``. It is the same in any order, on any number of
threads and ranks, and nothing has to be stored to resume. Everything is vectorized over arrays.

Source:
    The mixing function is the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014) with Stafford's variant 13 constants.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

GAMMA = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, odd
_MASK = (1 << 64) - 1
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble each 64-bit word; a bijection, so distinct words stay distinct."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_M1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_M2)
    return x ^ (x >> np.uint64(31))


def _mix64_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


def key64(*words: int) -> int:
    """Hash integers (taken modulo 2**64) into one 64-bit key."""
    key = 0
    for word in words:
        key = _mix64_int(((key + GAMMA) & _MASK) ^ (word & _MASK))
    return key


def hash64(key: int | npt.NDArray[np.uint64], *words: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Hash rows of integer words under a key.

    Args:
        key: From ``key64``: the part of the address that all rows share; or several, as an array that
            broadcasts with the words.
        *words: Integer arrays that broadcast together, at least one-dimensional.

    Returns:
        One uint64 per row; for a fixed key and fixed other words a bijection of each word.

    Example:
        >>> hash64(key64(0, 3), np.arange(2)).tolist()
        [4561007074729590330, 3489783273225737375]
    """
    state = np.atleast_1d(np.asarray(key, np.uint64))
    for word in words:
        state = mix64((state + np.uint64(GAMMA)) ^ word.astype(np.uint64, copy=False))
    return state


def uniform(key: int, *words: npt.NDArray[Any], num: int) -> npt.NDArray[np.float64]:
    """Draw ``num`` uniform numbers in [0, 1) for each row of words: ``(rows, num)`` float64, 53 random bits each."""
    return uniforms((key,), *words, nums=(num,))[0]


def uniforms(
    keys: Sequence[int], *words: npt.NDArray[Any], nums: Sequence[int]
) -> list[npt.NDArray[np.float64]]:
    """Draw what ``uniform`` draws under each of several keys, at once: each numpy call takes microseconds."""
    base = hash64(np.array(keys, np.uint64)[:, None], *words)
    key_of_column, steps, ends = _columns(tuple(nums))
    bits = mix64(base.T[:, key_of_column] + steps) >> np.uint64(11)
    numbers = bits.astype(np.float64) * 2.0**-53
    return [numbers[:, end - num : end] for num, end in zip(nums, ends, strict=True)]


@lru_cache(maxsize=64)
def _columns(nums: tuple[int, ...]) -> tuple[Any, npt.NDArray[np.uint64], tuple[int, ...]]:
    steps = [np.arange(1, num + 1, dtype=np.uint64) * np.uint64(GAMMA) for num in nums]
    return np.repeat(np.arange(len(nums)), nums), np.concatenate(steps), tuple(accumulate(nums))
