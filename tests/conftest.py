"""Strictness for every test: no silent promotion of dtypes or ranks; warnings are errors (pyproject.toml).

Tests run on 8 CPU devices unless JAX_PLATFORMS names others, which then keep the CPU next to them, for float64 truths.
"""

import gc
import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = ",".join(
    dict.fromkeys([name for name in os.environ.get("JAX_PLATFORMS", "").split(",") if name] + ["cpu"])
)
# The GPU interpreter parks one thread a warpgroup in blocking callbacks: XLA's pool must be larger than the cores of a
# small machine, or it deadlocks.
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
# Programs that run once or twice take longer to compile than to run, here and in the processes that tests start. With
# JAX_DISABLE_MOST_OPTIMIZATIONS=0 they are compiled as users compile them.
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest

from jaxzoo.utils.host_memory import ENVIRONMENT
from tests.device import COMMANDS, require

os.environ.update(ENVIRONMENT)  # for the processes that tests start; commands in this one leave its allocator alone
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def default_compilation():
    """Compiles as users do, with all of XLA's optimizations: some wrong numbers appear only then.

    The test jits a function of its own; a program that an earlier test compiled would be used as it is.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""Every compiled program holds some mappings of memory, of which Linux gives a process 65,530: beyond, XLA crashes."""


def pytest_runtest_logfinish():
    """Frees compiled programs of earlier tests before they are too many."""
    global _finished
    _finished += 1
    if _finished % 20 == 0 and MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


_finished = 0


def pytest_collection_finish():
    """Keeps Python's garbage collector, a tenth of the time, away from modules and tests, which stay anyway."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each worker consecutive tests, which share fixtures and compilations."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_runtest_setup(item):
    for platform in COMMANDS:
        if item.get_closest_marker(platform):
            require(platform)
