"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import jax.numpy as jnp

from pallas_kernels.wkv4.problem import Problem

HEADLINE = {"b4_t8192_d1024": Problem(b=4, t=8192, d=1024)}
"""The shape of the floors in README.md."""

PRESETS = {
    "rwkv4_169m": Problem(b=8, t=1024, d=768),
    "rwkv4_3b": Problem(b=8, t=4096, d=2560),
    "one_prompt": Problem(b=1, t=4096, d=2560),
}
"""Widths and lengths of published models (Peng et al. 2023, Table 2), a training step's rows and a single prompt."""

CPU = {"text_t2048": Problem(b=4, t=2048, d=256, dtype=jnp.float32)}
"""Workload with which `xla` is timed on a CPU."""

SPECS = HEADLINE | PRESETS | CPU
