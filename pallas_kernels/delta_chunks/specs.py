"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import jax.numpy as jnp

from pallas_kernels.delta_chunks.problem import GeneralProblem, Problem

HEADLINE = {f"b4_h16_t8192_k{n}": Problem(b=4, t=8192, h=16, k=n, v=n) for n in (64, 128)}
"""The shapes of the floors in README.md."""

GENERAL = {"b4_h16_t8192_k64_general": GeneralProblem(b=4, t=8192, h=16, k=64, v=64)}
"""Shapes of RWKV-7."""

CPU = {"text_t2048": Problem(b=4, t=2048, h=4, k=64, v=64, dtype=jnp.float32)}
"""Workloads with which `xla` is timed on a CPU."""

SPECS = HEADLINE | GENERAL | CPU
