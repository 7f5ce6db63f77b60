"""The C allocator of a process that trains on a CPU: it keeps what is freed.

XLA takes one block for all intermediate values of a step and frees it after the step. By default glibc maps a block
above 32 MiB again every time, and the kernel clears its pages at the first touch: half of the CPU time of a step
of the MQAR models. Kept, the pages stay; the price is that the process holds on to the most that it ever used.

Elsewhere than in glibc both functions do nothing.
"""

import ctypes
import importlib.util
import platform

import jax

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt (malloc.h)."""


def share_one_arena() -> bool:
    """Lets threads that have not allocated yet share the main thread's arena; returns whether it could.

    To be called before JAX starts its threads: a thread's own arena cannot hold a block above 64 MiB, which is then
    mapped whatever the settings are. Where JAX may find an accelerator it does nothing: the threads that feed one are
    better off with arenas of their own.
    """
    platforms = jax.config.jax_platforms
    plugins = map(importlib.util.find_spec, ("jax_plugins", "libtpu"))  # what can be told without starting JAX
    is_cpu_alone = platforms == "cpu" if platforms else not any(plugins)
    return is_cpu_alone and _set({M_ARENA_MAX: 1})


def keep_freed_memory() -> bool:
    """Makes malloc map nothing and trim nothing from now on; returns whether it could."""
    return _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1})


def _set(values: dict[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    accepted = [mallopt(name, value) for name, value in values.items()]
    return all(accepted)
