"""Named workload shapes, shared by tests, benchmarks and compile checks."""

from typing import Any

import jax.numpy as jnp

from pallas_kernels.sliding_window.problem import Problem

BASED: dict[str, Any] = {"h": 16, "k": 64, "v": 64}
"""Heads and widths of Based's models."""

HEADLINE = {f"b4_h16_t8192_w{w}": Problem(b=4, t=8192, window=w, **BASED) for w in (64, 128)}
"""The shapes of the floors in README.md."""

FIGURE_7_BATCH = {f"fig7_b{b}_t1024": Problem(b=b, t=1024, window=64, **BASED) for b in (1, 4, 16, 64, 128, 256)}
"""Based, Fig. 7: batch, at 1024 tokens."""

WINDOWS = {f"window_w{w}": Problem(b=4, t=8192, window=w, **BASED) for w in (16, 32, 64, 128, 256, 512, 1024)}
"""Cost against window, at the headline's shape; Based, Fig. 1 left, shows what each recalls."""

STEP = {f"step_b{b}_w64": Problem(b=b, t=1, window=64, **BASED) for b in (1, 4, 16, 64, 128, 256)}
"""Decoding, by batch."""

STEP_WINDOWS = {f"step_b64_w{w}": Problem(b=64, t=1, window=w, **BASED) for w in (16, 32, 64, 128, 256, 512, 1024)}
"""Decoding, by window."""

CPU = {
    "mqar_t64": Problem(b=64, t=64, h=1, k=64, v=64, window=16, dtype=jnp.float32),
    "mqar_t256": Problem(b=64, t=256, h=1, k=64, v=64, window=64, dtype=jnp.float32),
    "text_t2048": Problem(b=4, t=2048, window=64, dtype=jnp.float32, **BASED),
}
"""Workloads with which `xla` is timed on a CPU."""

CPU_LENGTH = {
    f"cpu_t{t}": Problem(b=1, t=t, h=4, k=64, v=64, window=64, dtype=jnp.float32) for t in (256, 512, 1024, 2048, 4096)
}
"""Length, on a CPU: the banded form against the quadratic one."""

CPU_WINDOWS = {
    f"cpu_w{w}": Problem(b=1, t=4096, h=4, k=64, v=64, window=w, dtype=jnp.float32)
    for w in (16, 32, 64, 128, 256, 512, 1024, 4096)
}
"""Cost against window, on a CPU, up to all tokens."""

CPU_BATCH = {f"cpu_b{b}": Problem(b=b, t=1024, h=4, k=64, v=64, window=64, dtype=jnp.float32) for b in (1, 2, 4, 8, 16)}
"""Based, Fig. 7, on a CPU."""

TINY = {
    "tiny": Problem(b=1, t=70, h=3, k=3, v=5, window=9, dtype=jnp.float32),
    "tiny_grouped": Problem(b=2, t=33, h=4, g=2, k=4, v=3, window=16, dtype=jnp.float32),
}
"""For tests."""

SPECS = HEADLINE | FIGURE_7_BATCH | WINDOWS | STEP | STEP_WINDOWS | CPU | CPU_LENGTH | CPU_WINDOWS | CPU_BATCH | TINY
