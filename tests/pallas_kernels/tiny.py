"""Small shapes of workloads."""

import jax.numpy as jnp

from pallas_kernels.sliding_window.problem import Problem as Window
from pallas_kernels.taylor_attention.problem import Problem as Taylor

TAYLOR = {
    "tiny": Taylor(b=1, t=70, h=3, k=3, v=5, dtype=jnp.float32),
    "tiny_grouped": Taylor(b=2, t=33, h=4, g=2, k=4, v=3, dtype=jnp.float32),
}
WINDOW = {
    "tiny": Window(b=1, t=70, h=3, k=3, v=5, window=9, dtype=jnp.float32),
    "tiny_grouped": Window(b=2, t=33, h=4, g=2, k=4, v=3, window=16, dtype=jnp.float32),
}
