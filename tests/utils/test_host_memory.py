"""The CPU allocator. Kills: pages that every step maps again."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")

SCRIPT = """
import resource
import jax
import jax.numpy as jnp
from jaxzoo.utils.host_memory import LARGE_MODEL, give_back_large_blocks, keep_freed_memory

when = "{when}"
if when == "late":
    jax.devices()
if when != "never":
    keep_freed_memory()
    keep_freed_memory()
give_back_large_blocks(LARGE_MODEL if when == "large" else LARGE_MODEL - 1)
assert jax.devices()[0].platform == "cpu"

@jax.jit
def step(x):  # an intermediate value of 128 MiB: what a loop carries is not fused away
    table = x[:, None] * jnp.arange(2.0**14)[None, :]
    return jnp.sum(jax.lax.fori_loop(0, x.astype(int)[1], lambda _, y: y + 1.0, table))

def faults(n):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n):
        step(x).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

x = jnp.arange(2.0**11)
faults(20)  # until the heap has found its size
print(min(faults(4) for _ in range(3)))  # the heap may grow by a block once more
"""
PAGES = 4 * 2**27 // 4096


def run(when: str, **environment: str) -> tuple[int, str]:
    """Page faults of four steps, and standard error, of a process that sets its allocator early, late or never."""
    command = [sys.executable, "-c", SCRIPT.format(when=when)]
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout), done.stderr


@pytest.mark.full
def test_a_step_touches_no_new_pages():
    """Kills: a block that is mapped again at each step, because a setting is refused, or set too late for the thread
    that runs the step; and a test that would not see it."""
    assert run("never")[0] > 0.9 * PAGES
    assert run("early") == (pytest.approx(0, abs=200), "")


@pytest.mark.full
def test_large_models_give_back_what_they_free():
    """Kills: a heap that blocks of hundreds of MB fragment until memory ends (21 GB where 9 are enough)."""
    assert run("large")[0] > 0.9 * PAGES


@pytest.mark.full
def test_a_late_call_names_environment_variables_that_do_the_same():
    """Kills: a process that trains at half its speed and is not told, and a remedy that is none."""
    _, line = run("late")
    assert line.startswith("warning: JAX had started before keep_freed_memory()")
    assert line.count("\n") == 1
    variables = dict(word.split("=") for word in line.split() if "=" in word)
    assert run("late", **variables) == (pytest.approx(0, abs=200), "")
