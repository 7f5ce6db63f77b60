"""Fixed decays, one per head."""

import numpy as np


def head_decay(decay_const: float, n_heads: int) -> np.ndarray:
    """`1 - 2^(decay_const - h)` for head h counted from 0, float64 `(h,)`: the decay factor of its state per token."""
    return 1 - 2.0 ** (decay_const - np.arange(n_heads))
