"""What every op shares: implementations behind one contract, and the choice between them by platform.

An op keeps a table {name: Backend}. Its `backends.py` says what the functions of a Backend take and return;
kernels are imported where they run, because Mosaic GPU does not import on every supported version of JAX.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.experimental.pallas.tpu  # not within a trace: it adds options to the keys of jit, all of which would miss

MOSAIC_GPU_JAX = (0, 11, 2)
"""The oldest JAX that the Mosaic GPU kernels run on."""

Choices = tuple[tuple[str | None, str], ...]
"""Pairs (platform, implementation); platform None: all others. Hashable, so that it can be a static argument."""


class Backend(NamedTuple):
    """One implementation of an op."""

    objection: Callable[..., str | None]
    """(problem) -> why the implementation cannot serve this problem, or None."""
    forward: Callable
    backward: Callable | None
    """None: `forward` returns the output alone, and is differentiable by itself."""


def choose(
    backends: Mapping[str, Backend], problem, implementation: str | None, *, kernels: tuple[tuple[str, str], ...]
) -> Choices:
    """The implementation named, or for each platform the first of `kernels`, pairs (platform, name), that serves.

    Raises:
      NotImplementedError: `implementation` objects; nothing falls back from a name.
    """
    if implementation is not None:
        reason = backends[implementation].objection(problem)
        if reason is not None:
            raise NotImplementedError(f"{implementation}: {reason}; use implementation='xla'")
        return ((None, implementation),)
    fit: dict[str | None, str] = {}
    for platform, name in kernels:
        if platform not in fit and backends[name].objection(problem) is None:
            fit[platform] = name
    return (*fit.items(), (None, "xla"))


def run(backends: Mapping[str, Backend], method: str, choices: Choices, *operands, **options):
    """`method` ("forward" or "backward") of the implementation for the platform that this is lowered for."""

    def bind(name):
        return lambda *x: tuple(getattr(backends[name], method)(*x, **options))

    functions = {platform: bind(name) for platform, name in choices if platform is not None}
    default = bind(dict(choices)[None])
    return jax.lax.platform_dependent(*operands, default=default, **functions) if functions else default(*operands)


def mesh_objection(entry_point: str) -> str | None:
    """No kernel runs where the compiler would have to partition it; `entry_point` is the op's function for a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    free = tuple(n for n, size in mesh.shape.items() if n not in mesh.manual_axes and size > 1)
    if free:
        return f"mesh axes {free} are not manual, and a kernel cannot be partitioned; call {entry_point}"
    return None


def hopper_objection(dtypes: tuple[str, ...]) -> str | None:
    """What no Mosaic GPU kernel serves: `dtypes` of q, k, v, the version of JAX, the device."""
    if jax.__version_info__ < MOSAIC_GPU_JAX:
        return f"needs jax >= {'.'.join(map(str, MOSAIC_GPU_JAX))}, this is {jax.__version__}"
    if set(dtypes) != {"bfloat16"}:
        return f"dtypes of q, k, v are {dtypes}, not all bfloat16"
    if jax.default_backend() == "gpu":
        capability = getattr(jax.devices()[0], "compute_capability", None)
        if capability != "9.0":
            return f"the device has compute capability {capability}, and wgmma needs 9.0"
    return None
