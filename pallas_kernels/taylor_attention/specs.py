"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from pallas_kernels.taylor_attention.problem import Problem

PAPER: dict[str, Any] = {"h": 16, "k": 16, "v": 64}
"""Heads and widths of Based's kernel benchmarks."""

HEADLINE = {"b4_h16_t8192": Problem(b=4, t=8192, **PAPER)}
"""The shape of the floors in README.md."""

KEY_DIMS = {f"b4_h16_t8192_k{k}": dataclasses.replace(HEADLINE["b4_h16_t8192"], k=k) for k in (24, 32)}
"""The headline's with the wider features of Based's ablations."""

FLOAT32 = {
    "b4_h16_t8192_float32": dataclasses.replace(HEADLINE["b4_h16_t8192"], dtype=jnp.float32),
}
"""The headline's in float32."""

FIGURE_5_BATCH = {f"fig5_b{b}_t1024": Problem(b=b, t=1024, **PAPER) for b in (1, 4, 16, 64, 128, 256)}
"""Based, Fig. 5 left: batch, at 1024 tokens."""

FIGURE_5_LENGTH = {f"fig5_b4_t{t}": Problem(b=4, t=t, **PAPER) for t in (1024, 2048, 4096, 8192, 16384, 32768)}
"""Based, Fig. 5 right: length, at batch 4."""

STEP = {f"step_b{b}": Problem(b=b, t=1, **PAPER) for b in (1, 4, 16, 64, 128, 256)}
"""Decoding, by batch."""

CPU = {
    "mqar_t64": Problem(b=64, t=64, h=1, k=16, v=64, dtype=jnp.float32),
    "mqar_t256": Problem(b=64, t=256, h=1, k=16, v=64, dtype=jnp.float32),
    "text_t2048": Problem(b=4, t=2048, h=16, k=16, v=64, dtype=jnp.float32),
}
"""Workloads with which `xla` is timed on a CPU."""

CPU_LENGTH = {f"cpu_b1_h4_t{t}": Problem(b=1, t=t, h=4, k=16, v=64, dtype=jnp.float32) for t in (64, 256, 1024, 4096)}
"""Length, on a CPU: where the memory of other forms grows."""

TINY = {
    "tiny": Problem(b=1, t=70, h=3, k=3, v=5, dtype=jnp.float32),
    "tiny_grouped": Problem(b=2, t=33, h=4, g=2, k=4, v=3, dtype=jnp.float32),
}
"""For tests."""

SPECS = HEADLINE | KEY_DIMS | FLOAT32 | FIGURE_5_BATCH | FIGURE_5_LENGTH | STEP | CPU | CPU_LENGTH | TINY
