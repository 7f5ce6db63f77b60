"""The C allocator of a process that computes on a CPU: it keeps what is freed.

XLA takes one block for all intermediate values of a step and frees it after the step. By default glibc maps a block
above 32 MiB again every time, and the kernel clears its pages at the first touch: half of the CPU time of a step
of the MQAR models. Kept, the pages stay; the price is that the process holds on to the most that it ever used.
"""

import ctypes
import functools
import importlib.util
import os
import platform

import jax
from jax._src import xla_bridge

from jaxzoo.utils.screen import warn

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt (malloc.h)."""
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""The same settings as environment variables, which glibc reads when a process starts."""


@functools.cache
def keep_freed_memory() -> None:
    """Makes malloc map nothing and trim nothing from now on, where JAX computes on CPUs; starts JAX.

    To be called before JAX starts its threads: one that has an arena of its own cannot hold a block above 64 MiB there,
    which is then mapped whatever the settings are. Called later, it prints a warning with the environment variables
    that do the same. Does nothing with another C library than glibc, and where these variables are set.
    """
    if platform.libc_ver()[0] != "glibc" or ENVIRONMENT.keys() <= os.environ.keys():
        return
    mallopt = ctypes.CDLL(None).mallopt
    is_late = xla_bridge.backends_are_initialized()
    if not is_late and _is_cpu_alone():
        mallopt(M_ARENA_MAX, 1)
    if jax.default_backend() != "cpu":
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)
    if is_late and not jax.distributed.is_initialized():  # several processes meet first, and that starts JAX
        settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        warn(f"JAX had started before keep_freed_memory(): steps may be slower than with {settings} in the environment")


def _is_cpu_alone() -> bool:
    """Whether JAX finds no accelerator, told without starting it: threads that feed one need arenas of their own."""
    platforms = jax.config.jax_platforms
    if platforms:
        return platforms == "cpu"
    return not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
