"""What every op does the first time."""

import subprocess
import sys

import pytest

PROGRAM = """
import jax, jax.numpy as jnp
from pallas_kernels.{package} import {op}

traces = []

@jax.jit
def run(q):
    traces.append(1)
    return {op}(q, q, q{options})

for _ in range(2):
    run(jnp.ones((1, 128, 1, 16)))
assert len(traces) == 1, traces
"""


@pytest.mark.parametrize(
    ("package", "op", "options"),
    [("taylor_attention", "taylor_attention", ""), ("sliding_window", "sliding_window_attention", ", window=9")],
)
def test_the_first_call_of_a_process_is_the_only_trace(package, op, options):
    """Kills an import within the first trace that changes jit's keys, so that the second call compiles again."""
    program = PROGRAM.format(package=package, op=op, options=options)
    subprocess.run([sys.executable, "-c", program], check=True)
