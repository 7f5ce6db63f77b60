"""Choice between the implementations of an op, made while a program is lowered, by the target device.

An op has a table {name: Backend} (`op.py`). Implementations that do not run are never traced.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.tpu  # not within a trace: it adds options to the keys of jit, all of which would miss
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from pallas_kernels import certificates
from pallas_kernels.kernel_sources import MOSAIC, TRITON

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""JAX's names of lowering platforms."""


H100_MULTIPROCESSORS = 132
"""Multiprocessors of an H100 SXM and an H200; the default for unknown GPUs."""


class _Target(NamedTuple):
    """Target of lowering; it stands in for an absent GPU and has the attributes of JAX's devices."""

    platform: str
    multiprocessors: int
    compute_capability: str | None


_LOWERING_FOR: contextvars.ContextVar[_Target | None] = contextvars.ContextVar("lowering_for", default=None)


@contextlib.contextmanager
def lowering_for(
    platform: str, *, multiprocessors: int = H100_MULTIPROCESSORS, capability: str = "9.0"
) -> Iterator[None]:
    """Context manager: programs traced inside are lowered for `platform`, one of `PLATFORMS`.

    For ahead-of-time compilation on a host without such devices: forward passes save the residuals of kernels that may
    run, GPU kernels are planned for `multiprocessors`, and kernels certified for `capability` are chosen automatically.
    """
    token = _LOWERING_FOR.set(_Target(platform, multiprocessors, capability if platform == "cuda" else None))
    try:
        yield
    finally:
        _LOWERING_FOR.reset(token)


def may_run_on(platform: str) -> bool:
    """Whether a program traced now may run on `platform`: the one of `lowering_for`, else of this process."""
    target = _LOWERING_FOR.get()
    if target is not None:
        return platform == target.platform
    return platform == ("cuda" if jax.default_backend() == "gpu" else jax.default_backend())


def may_run_by_default(platform: str, op: str | None = None, implementation: str | None = None) -> bool:
    """Whether a program traced now may run on `platform` with verified kernels of `op` (None: of any op).

    implementation: name of the kernels; None: any.
    """
    if not may_run_on(platform):
        return False
    target = _LOWERING_FOR.get()
    device = certificates.architecture(jax.devices()[0]) if target is None else target.compute_capability
    languages = certificates.languages(device) if implementation is None else (language_of(implementation),)
    return any(certificates.objection(device, op, language) is None for language in languages)


def may_serve_by_default(platform: str, problem: Any, implementation: str) -> bool:
    """`may_run_by_default` for all packages whose kernels serve a problem."""
    return all(may_run_by_default(platform, op, implementation) for op in ops_of(problem))


def language_of(implementation: str) -> str:
    """Language of the kernels of an implementation, for which certificates are."""
    return TRITON if implementation == TRITON else MOSAIC


def multiprocessors() -> int:
    """Multiprocessors for which kernels are planned: of the GPU of `lowering_for`, else of this process.

    A GPU with a count on which no kernel was verified (an H100 PCIe has 114) runs the plans of an H100 SXM.
    """
    target = _LOWERING_FOR.get()
    if target is not None:
        return target.multiprocessors
    if jax.default_backend() != "gpu":
        return H100_MULTIPROCESSORS
    device = jax.devices()[0]
    verified = certificates.verified_multiprocessors(certificates.architecture(device))
    return device.core_count if device.core_count in verified else H100_MULTIPROCESSORS


class Backend(NamedTuple):
    """One implementation of an op."""

    platform: str | None
    """Platform on which it runs, one of `PLATFORMS`; None: all."""
    objection: Callable[[Any], str | None]
    """(problem) -> why the implementation cannot serve the problem on any device, or None."""
    forward: Callable
    backward: Callable
    target_objection: Callable[[Any, Any], str | None] = lambda problem, device: None
    """(problem, device) -> why it cannot serve the problem on this device, or None; device None: unknown."""
    verified_only: bool = False
    """Whether the automatic choice needs a certificate of the architecture (`certificates.py`)."""
    automatic: Callable[[Any], bool] = lambda problem: True
    """(problem) -> whether it may be chosen automatically."""
    saved_like: Callable[..., Any] | None = None
    """(*operands, **options) -> shapes and dtypes of the residuals; None: the same as "xla"."""


Backends = Mapping[str, Backend]


def choose(
    backends: Backends, problem: Any, implementation: str | None, *, kernels: tuple[str, ...]
) -> tuple[str, ...]:
    """The named implementation, or the `kernels` that serve the problem on their platforms, followed by "xla".

    Raises NotImplementedError if the named implementation objects.
    """
    if implementation is None:
        able = (n for n in kernels if backends[n].automatic(problem) and backends[n].objection(problem) is None)
        return (*able, "xla")
    _refuse(implementation, backends[implementation].objection(problem))
    return (implementation,)


def run(backends: Backends, method: str, names: tuple[str, ...], problem: Any, *operands, **options):
    """Calls `method` ("forward" or "backward") of the first of `names` that serves the target device.

    All implementations return the same shapes as "xla". Raises NotImplementedError, on lowering, if the only
    implementation does not run on the device.
    """
    like = getattr(backends["xla"], method)
    if names == ("xla",):
        return tuple(like(*operands, **options))
    leaves, tree = jax.tree.flatten(operands)
    static = tuple(sorted(options.items()))
    choices = tuple(
        _Choice(name, getattr(backends[name], method), backends[name], automatic=len(names) > 1) for name in names
    )
    outputs = jax.eval_shape(functools.partial(_call, like, tree, static), *leaves)
    found = by_target.bind(*leaves, choices=choices, like=like, problem=problem, tree=tree, options=static, mapped=())
    return jax.tree.unflatten(jax.tree.structure(outputs), found)


class _Choice(NamedTuple):
    name: str
    function: Callable
    backend: Backend
    automatic: bool


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _call(function, tree, options, *leaves):
    return tuple(function(*jax.tree.unflatten(tree, leaves), **dict(options)))


by_target = Primitive("by_target")
by_target.multiple_results = True


def _flat(function: Callable, tree, options, mapped) -> Callable:
    """The function of the leaves, under one `vmap` for each entry of `mapped`."""

    def run(*leaves):
        return jax.tree.leaves(_call(function, tree, options, *leaves))

    for axes in mapped:
        run = jax.vmap(run, in_axes=axes)
    return run


@by_target.def_abstract_eval
def _outputs(*operands, choices, like, problem, tree, options, mapped):
    return _avals(_flat(like, tree, options, mapped), operands)


def _avals(function: Callable, operands) -> list[Any]:
    return jax.make_jaxpr(function)(*operands).out_avals


@functools.partial(jax.jit, static_argnames=("choices", "like", "problem", "tree", "options", "mapped"))
def _compiled(*leaves, **static):
    return by_target.bind(*leaves, **static)


by_target.def_impl(_compiled)


def _lower(platform: str, ctx, *operands, choices, like, problem, tree, options, mapped):
    objections = [_target_objection(choice, problem, platform, target_device(ctx)) for choice in choices]
    if all(objections):
        _refuse(choices[-1].name, objections[-1])
    choice = choices[objections.index(None)]
    function = _flat(choice.function, tree, options, mapped)
    made, asked = ([(x.shape, x.dtype) for x in avals] for avals in (_avals(function, ctx.avals_in), ctx.avals_out))
    if made != asked:
        raise TypeError(f"{choice.name} makes {made}, where xla makes {asked}")
    return mlir.lower_fun(function, multiple_results=True)(ctx, *operands)


def target_device(ctx) -> Any:
    """One of the target devices, or the stand-in of `lowering_for`; None: unknown, or several platforms."""
    target = _LOWERING_FOR.get()
    if target is not None and target.platform == "cuda" and ctx.module_context.platforms == ("cuda",):
        return target
    try:
        backend = ctx.module_context.get_backend(optional=True)
    except RuntimeError:  # no such device here: the backend, if any, is the compiler of a topology
        backend = ctx.module_context.backend
    return backend.devices()[0] if backend is not None and backend.devices() else None


def _target_objection(choice: _Choice, problem: Any, platform: str, device: Any) -> str | None:
    backend = choice.backend
    if backend.platform not in (None, platform):
        return f"runs on {backend.platform}, and this is compiled for {platform}"
    reason = backend.target_objection(problem, device)
    if reason is not None or not (choice.automatic and backend.verified_only):
        return reason
    target, language = certificates.architecture(device), language_of(choice.name)
    return next((found for op in ops_of(problem) if (found := certificates.objection(target, op, language))), None)


def ops_of(problem: Any) -> tuple[str | None, ...]:
    """Packages whose kernels serve a problem: its own, and that of the recurrence that a kernel also runs."""
    recurrence = getattr(problem, "recurrence", None)
    return op_of(problem), *(() if recurrence is None else (op_of(recurrence),))


def op_of(problem: Any) -> str | None:
    """Name of the op's package that defines the problem, or None."""
    package, _, path = type(problem).__module__.partition(".")
    return path.partition(".")[0] if package == __package__ else None


for _platform in PLATFORMS:
    mlir.register_lowering(by_target, functools.partial(_lower, _platform), platform=_platform)


def _batch(operands, axes, *, mapped, **static):
    found = by_target.bind(*operands, mapped=(*mapped, tuple(axes)), **static)
    return found, [0] * len(found)


batching.primitive_batchers[by_target] = _batch


def _refuse(name: str, reason: str | None) -> None:
    if reason is not None:
        raise NotImplementedError(f"{name}: {reason}; use implementation='xla'")


def mesh_objection(entry_point: str) -> str | None:
    """Objection to a mesh on which the compiler would have to partition a kernel; `entry_point`: the op for meshes."""
    mesh = jax.sharding.get_abstract_mesh()
    free = tuple(n for n, size in mesh.shape.items() if n not in mesh.manual_axes and size > 1)
    if free:
        return f"mesh axes {free} are not manual, and a kernel cannot be partitioned; call {entry_point}"
    return None


def hopper_objection(dtypes: tuple[str, ...], served: tuple[str, ...] = ("bfloat16",)) -> str | None:
    """Objection of Mosaic GPU kernels to `dtypes` of q, k, v unless all are the same one of `served`."""
    if len(set(dtypes)) > 1 or dtypes[0] not in served:
        return f"dtypes of q, k, v are {dtypes}, not {' or '.join(f'all {name}' for name in served)}"
    return None


def needs_wgmma(problem: Any, device: Any) -> str | None:
    """Objection of Mosaic GPU kernels to GPUs without wgmma."""
    capability = getattr(device, "compute_capability", None)
    if device is not None and capability != "9.0":
        return f"the device has compute capability {capability}, and wgmma needs 9.0"
    return None
