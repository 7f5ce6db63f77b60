"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import jax.numpy as jnp

from pallas_kernels.selective_scan.problem import Problem

HEADLINE = {
    "b4_t8192_d1024_n16": Problem(b=4, t=8192, d=1024, n=16),
    "mamba_360m": Problem(b=32, t=2048, d=2048, n=16),
}
"""The shapes of the floors in README.md; the second is a layer of a model of 360M parameters and a step's tokens."""

PRESETS = {
    "mamba_130m": Problem(b=4, t=2048, d=1536, n=16),
    "mamba_2.8b": Problem(b=4, t=2048, d=5120, n=16),
}
"""Widths of published models (Gu and Dao 2023, Table 12)."""

CPU = {"text_t2048": Problem(b=4, t=2048, d=256, n=16, dtype=jnp.float32)}
"""Workload with which `xla` is timed on a CPU."""

SPECS = HEADLINE | PRESETS | CPU
