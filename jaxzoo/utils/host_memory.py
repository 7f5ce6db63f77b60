"""Settings of the C allocator for computation on a CPU: freed memory is kept.

XLA allocates one block for the intermediate values of a step and frees it after the step. By default glibc maps blocks
above 32 MiB at every allocation, and the kernel clears their pages, which takes half of the CPU time of a step of the
MQAR models. With these settings the process keeps its peak memory.

A heap that never shrinks is fragmented by large blocks of many sizes: finetuning a converted SmolLM2 (135 million
parameters, batches of 1,024 tokens) grew to 21 GB, where 9 GB are enough. Such a model maps its large blocks again.
"""

import ctypes
import functools
import importlib.util
import os
import platform

import jax
from jax._src import xla_bridge

from jaxzoo.utils.screen import warn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
"""Parameters of glibc's mallopt (malloc.h)."""
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""The same settings as environment variables of glibc."""
LARGE_MODEL = 2**28
"""Bytes of parameters from which freed blocks above 32 MiB are given back."""


@functools.cache
def keep_freed_memory() -> None:
    """Makes malloc keep freed memory if JAX computes on CPUs; starts JAX.

    Call it before JAX starts its threads, whose arenas could not hold blocks above 64 MiB; later it prints a warning
    with equivalent environment variables. Does nothing if these are set, or without glibc.
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


def give_back_large_blocks(parameter_bytes: int) -> None:
    """Ends `keep_freed_memory` for blocks above 32 MiB if a model is large; does nothing if it was not called."""
    if parameter_bytes >= LARGE_MODEL and keep_freed_memory.cache_info().currsize and platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 2**16)  # glibc's default
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest allowed


def _is_cpu_alone() -> bool:
    """Whether JAX will find no accelerator (whose threads need their own arenas), without starting JAX."""
    platforms = jax.config.jax_platforms
    if platforms:
        return platforms == "cpu"
    return not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
