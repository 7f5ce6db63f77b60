"""Named workload shapes, shared by tests, benchmarks and compile checks."""

import jax.numpy as jnp

from pallas_kernels.ut_transform.problem import Problem, ValuesProblem

HEADLINE = {
    "b4_h16_t8192_k64": Problem(b=4, t=8192, h=16, k=64),
    "b4_h16_t8192_k64_decay": Problem(b=4, t=8192, h=16, k=64, decay="token"),
    "b4_h16_t8192_k128_decay": Problem(b=4, t=8192, h=16, k=128, decay="token"),
    "b4_h16_t8192_k64_v64": ValuesProblem(b=4, t=8192, h=16, k=64, v=64),
    "b4_h16_t8192_k64_v64_decay": ValuesProblem(b=4, t=8192, h=16, k=64, v=64, decay="token"),
}
"""The shapes of the floors in README.md."""

CHANNEL = {
    "b4_h16_t8192_k64_channel": Problem(b=4, t=8192, h=16, k=64, decay="channel"),
    "b4_h16_t8192_k64_v64_channel": ValuesProblem(b=4, t=8192, h=16, k=64, v=64, decay="channel"),
}
"""The same, with decays per channel of the keys."""

CPU = {"text_t2048": Problem(b=4, t=2048, h=4, k=64, dtype=jnp.float32)}
"""Workloads with which `xla` is timed on a CPU."""

SPECS = HEADLINE | CHANNEL | CPU
