"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import jax.numpy as jnp

from pallas_kernels.gated_linear_attention.problem import Problem

HEADLINE = {f"b4_h16_t8192_k{n}": Problem(b=4, t=8192, h=16, k=n, v=n) for n in (64, 128)}
"""The shapes of the floors in README.md."""

CHANNEL = {f"b4_h16_t8192_k{n}_channel": Problem(b=4, t=8192, h=16, k=n, v=n, channel=True) for n in (64, 128)}
"""The same with decays per channel."""

LENGTHS = {f"b1_h16_t{t}_k128": Problem(b=1, t=t, h=16, k=128, v=128) for t in (2048, 8192, 32768)}
"""Length, at batch 1."""

PRESETS = {
    "mamba2_130m": Problem(b=4, t=2048, h=24, g=1, k=128, v=64),
    "mamba2_2.7b": Problem(b=4, t=2048, h=80, g=1, k=128, v=64),
    "retnet_1.3b": Problem(b=4, t=2048, h=8, k=256, v=512),
    "gla_1.3b": Problem(b=4, t=2048, h=4, k=256, v=512, channel=True),
}
"""Heads and widths of published models (Dao and Gu 2024; Sun et al. 2023; Yang et al. 2024)."""

CPU = {
    "text_t2048": Problem(b=4, t=2048, h=4, k=64, v=64, dtype=jnp.float32),
    "text_t2048_channel": Problem(b=4, t=2048, h=4, k=64, v=64, dtype=jnp.float32, channel=True),
}
"""Workloads with which `xla` is timed on a CPU."""

SPECS = HEADLINE | CHANNEL | LENGTHS | PRESETS | CPU
