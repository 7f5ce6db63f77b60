"""Base of the ops: choice of the implementation, derivatives, and residuals.

An op is a table of implementations under one contract:

    forward(*operands, **options) -> *outputs, saved
    backward(*operands, *kept, saved, *cotangents, **options) -> gradients

Operands are arrays, `NamedTuple`s of arrays and None. There is a gradient for every operand that is not fixed, in its
dtype; None if the operand is None. `kept` are the outputs that `Op.kept` selects. Options are hashable; a field
`save_states` of an option says whether `backward` follows. If not, `saved` is None.

Public functions return y, or (y, state) with `return_state=True`; they are annotated `Any`. Sums and states are float32
for all input dtypes. Functions are differentiable in reverse mode, with "reference" also in forward mode; vmap, scan,
checkpoint and jit compose. On a mesh, use the `sharded_` functions. `implementation` names one that runs or raises
NotImplementedError; None chooses a kernel if it serves the call and is certified for the device of the lowered program
(`pallas_kernels.certificates`), else "xla". Arguments that do not fit together raise ValueError.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch, triton_call, triton_packages
from pallas_kernels.dispatch import Backend, Backends


class Options(NamedTuple):
    """Static options of a recurrence."""

    return_state: bool
    save_states: bool = False
    """Whether `backward` follows."""


def first_output(outputs: list, **options: Any) -> tuple:
    """`Op.kept` of ops whose backward pass reads the output."""
    return (outputs[0],)


def saves_nothing(*operands: Any, **options: Any) -> None:
    """`Backend.saved_like` of implementations whose backward pass recomputes everything."""


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """A differentiable function with several implementations."""

    name: str
    backends: Backends
    """"xla" and the kernels, in order of preference."""
    operands: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    """Operands without a gradient."""
    unread: tuple[str, ...] = ()
    """Operands that no backward pass reads: they are not kept for it, and None is given in their place."""
    outputs: int = 2
    kept: Callable[..., tuple] = lambda outputs, **options: ()
    """(outputs, **options) -> outputs that `backward` reads."""
    direct: Callable[..., tuple] | None = None
    """Differentiable function of the operands that replaces "xla" if no kernel serves a call."""
    kernels: Callable[["Op", Any], tuple[str, ...]] = lambda op, problem: tuple(x for x in op.backends if x != "xla")
    """(op, problem) -> implementations to choose from before "xla"."""

    @property
    def implementations(self) -> tuple[str, ...]:
        return ("reference", *self.backends)

    def check(self, implementation: str | None, names: tuple[str, ...] = (), function: str = "") -> None:
        """Raises ValueError if `implementation` is not one of `names` (default: all)."""
        names = names or self.implementations
        if implementation is not None and implementation not in names:
            name = function or self.name
            raise ValueError(f"{name}: implementation={implementation!r} must be one of {', '.join(names)}, or None")

    def choose(self, problem: Any, implementation: str | None) -> tuple[str, ...]:
        """Names of the implementations that may run, in order of preference; raises as `dispatch.choose`."""
        kernels = self.kernels(self, problem)
        return dispatch.choose(self.backends, problem, implementation, kernels=kernels)

    def run(self, names: tuple[str, ...], problem: Any, *operands: Any, **options: Any) -> tuple:
        """Outputs of the first of `names` that serves the device for which the program is lowered."""
        if names == ("xla",) and self.direct is not None:
            return self.direct(*operands)
        return _run(_Call(self, names, problem, tuple(options.items())), operands)

    def recur(
        self, problem: Any, implementation: str | None, *operands: Any, options: Any, empty: Callable[[], tuple]
    ) -> Any:
        """Calls a recurrence with an operand "state": y, or (y, state) if `options.return_state`.

        empty: makes (y, zero state) of a call without tokens.
        """
        names = self.choose(problem, implementation)
        if problem.t > 0:
            y, state = self.run(names, problem, *operands, options=options)
        else:
            y, zeros = empty()
            state = operands[self.operands.index("state")]
            state = zeros if state is None else state
        return (y, state) if options.return_state else y

    def table(self, saver: str) -> Backends:
        """Implementations that all save the same residuals as `saver`."""
        return _table(self, saver)


class _Call(NamedTuple):
    op: Op
    names: tuple[str, ...]
    problem: Any
    options: tuple[tuple[str, Any], ...]

    @property
    def saver(self) -> str:
        """Kernel that may run the backward pass and saves its own residuals, else "xla"."""
        for name in self.names:
            backend = self.op.backends[name]
            if backend.platform and backend.saved_like and self._may_run(name, backend.platform):
                return name
        return "xla"

    def _may_run(self, name: str, platform: str) -> bool:
        if len(self.names) == 1:
            return dispatch.may_run_on(platform)
        return dispatch.may_serve_by_default(platform, self.problem, name)

    def run(self, method: str, backends: Backends, *arrays: Any, save: bool) -> tuple:
        options = _with(dict(self.options), save_states=save)
        return dispatch.run(backends, method, self.names, self.problem, *arrays, **options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(call: _Call, operands: tuple) -> tuple:
    return call.run("forward", call.op.backends, *operands, save=False)[:-1]


def _forward(call: _Call, operands: tuple) -> tuple[tuple, tuple]:
    table = call.op.table(call.saver)
    *outputs, saved = call.run("forward", table, *operands, save=True)
    kept = call.op.kept(outputs, **dict(call.options))
    read = (None if name in call.op.unread else x for name, x in zip(call.op.operands, operands, strict=True))
    return tuple(outputs), (*read, *kept, saved)


def _backward(call: _Call, residuals: tuple, cotangents: tuple) -> tuple[tuple]:
    table = call.op.table(call.saver)
    found = iter(call.run("backward", table, *residuals, *cotangents, save=True))
    return (tuple(None if name in call.op.fixed else next(found) for name in call.op.operands),)


_run.defvjp(_forward, _backward)


def _with(options: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Replaces fields of `Options` in the options."""
    return {name: x._replace(**changes) if hasattr(x, "save_states") else x for name, x in options.items()}


@functools.cache
def _table(op: Op, saver: str) -> Backends:
    return {name: _saving_as(op, backend, op.backends[saver]) for name, backend in op.backends.items()}


def forget_tables() -> None:
    """Clears the cache of `Op.table`, after a change of an op's `backends`."""
    _table.cache_clear()


def _saving_as(op: Op, backend: Backend, saver: Backend) -> Backend:
    """The backend, returning zeros in place of the residuals of `saver` and recomputing its own.

    Such a program is lowered for another platform than it was traced for.
    """
    if backend.saved_like is saver.saved_like:
        return backend

    def forward(*operands, **options):
        outputs = backend.forward(*operands, **_with(options, save_states=False))[:-1]
        like = saver.saved_like
        if like is None:
            saved = jax.eval_shape(functools.partial(saver.forward, **options), *operands)[-1]
        else:
            saved = like(*operands, **options)
        return (*outputs, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), saved))

    def backward(*arrays, **options):
        operands, place = arrays[: len(op.operands)], len(arrays) - op.outputs - 1
        own = None
        if backend.saved_like is not saves_nothing:
            own = backend.forward(*operands, **_with(options, return_state=False))[-1]
        return backend.backward(*arrays[:place], own, *arrays[place + 1 :], **options)

    return backend._replace(forward=forward, backward=backward)


Objection = Callable[[Any], str | None]


def xla(forward: Callable, backward: Callable, **fields: Any) -> Backend:
    """Implementation that runs everywhere."""
    return Backend(None, lambda problem: None, forward, backward, **fields)


def xla_recurrence(forward: Callable, backward: Callable, operands: int) -> Backend:
    """`xla` for a recurrence that saves nothing: (*operands) -> y, state; (*operands, dy, dstate) -> gradients."""

    def run(*arrays, options):
        y, state = forward(*arrays)
        return y, state if options.return_state else None, None

    def pull_back(*arrays, options):
        return backward(*arrays[:operands], *arrays[-2:])

    return xla(run, pull_back, saved_like=saves_nothing)


def hopper(load: Callable[[], tuple[Callable, Callable]], objection: Objection, **fields: Any) -> Backend:
    """Mosaic GPU kernels. `load` imports them, which not every host can, and returns forward and backward."""
    whole = _whole(objection)
    return Backend("cuda", whole, *_passes(load), dispatch.needs_wgmma, verified_only=True, **fields)


def triton(
    load: Callable[[], tuple[Callable, Callable]],
    objection: Objection,
    automatic: Callable[[Any], bool] = lambda problem: True,
    **fields: Any,
) -> Backend:
    """Triton kernels. `load` imports them, which needs jax-triton, as for `hopper`.

    automatic: as of `Backend`. Only programs that may run on a GPU with verified kernels choose them on lowering.
    """
    whole = _whole(objection)

    def installed(problem: Any) -> str | None:
        return whole(problem) or triton_packages.missing()

    def chosen(problem: Any) -> bool:
        served = whole(problem) is None and automatic(problem)
        return served and dispatch.may_serve_by_default("cuda", problem, "triton")

    return Backend(
        "cuda", installed, *_passes(load), triton_call.needs_ampere, verified_only=True, automatic=chosen, **fields
    )


def _passes(load: Callable[[], tuple[Callable, Callable]]) -> tuple[Callable, Callable]:
    """Forward and backward of kernels that are imported on the first call."""

    def forward(*arrays, **options):
        return load()[0](*arrays, **options)

    def backward(*arrays, **options):
        return load()[1](*arrays, **options)

    return forward, backward


def tpu(forward: Callable, backward: Callable, objection: Objection, **fields: Any) -> Backend:
    """Mosaic TPU kernels."""
    return Backend("tpu", _whole(objection), forward, backward, verified_only=True, **fields)


def no_tpu_kernel(backend: Backend) -> Backend:
    """Entry of an op without TPU kernels, which objects to every problem; `backend` is XLA's."""
    return tpu(backend.forward, backend.backward, lambda problem: "no kernel is written for TPUs")


def vendor(platform: str, module: Any, **fields: Any) -> Backend:
    """Kernels of JAX or a vendor: `forward`, `backward` and `objection` of a module."""
    return Backend(platform, _whole(module.objection), module.forward, module.backward, **fields)


def _whole(objection: Objection) -> Objection:
    """Objection of a kernel, including problems that no kernel serves."""

    def whole(problem: Any) -> str | None:
        return problem.unserved or objection(problem) or dispatch.mesh_objection(problem.ON_MESH)

    return whole


def check_segment_ids(op: str, segment_ids: jax.Array | None, tokens: tuple[int, ...]) -> None:
    """Raises ValueError unless segment_ids are int32 of shape `tokens`, (b, t)."""
    if segment_ids is not None and (segment_ids.shape != tokens or segment_ids.dtype != jnp.int32):
        found = f"{segment_ids.dtype.name}{list(segment_ids.shape)}"
        raise ValueError(f"{op}: segment_ids {found} must be int32{list(tokens)}, one for each token")


def check_dtypes(op: str, **arrays: jax.Array) -> None:
    """Raises ValueError unless the arrays have the same dtype."""
    dtypes = tuple(x.dtype.name for x in arrays.values())
    if len(set(dtypes)) > 1:
        raise ValueError(f"{op}: dtypes of {', '.join(arrays)} {dtypes} must be equal; cast them")


def check_state(op: str, state: jax.Array | None, names: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the state has its shape, with dimensions `names`."""
    if state is not None and state.shape != shape:
        raise ValueError(f"{op}: initial_state of shape {state.shape} must be {names}={shape}")
