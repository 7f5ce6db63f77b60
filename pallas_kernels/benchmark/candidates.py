"""Candidates of an op: its implementations, other forms of its function, softmax attention, public peers."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import registry
from pallas_kernels.benchmark import softmax
from pallas_kernels.workload import KINDS, SEQUENCE_KINDS, Kind, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One candidate."""

    name: str
    build: Callable[[Workload], Callable]
    """Workload -> function of the inputs; raises NotImplementedError for unsupported workloads."""
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of workloads that it supports."""
    inputs: Callable[[Workload, int], tuple] | None = None
    """(workload, seed) -> inputs; None: the workload's."""
    truth: Callable[[Workload], Callable] | None = None
    """Workload -> reference function of float64 inputs; None: the workload's."""
    program: Callable | None = None
    """(function, input sets, calls, gradients=...) -> program of another framework, like `JaxProgram`; None: JAX."""
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    """Context for building, tracing and lowering its program."""
    same_function: bool = True
    """Whether the floor of the workload holds for this candidate."""


class Peers(NamedTuple):
    """Public peers of an op: result of `peers(op, platform)` in a file of `--peers`."""

    candidates: Sequence[Candidate] = ()
    notes: Sequence[str] = ()
    """A line for each missing peer."""
    versions: Mapping[str, str] = {}


EPS = 1e-12


def known(op: str, platform: str) -> list[Candidate]:
    """All candidates but peers, on "cpu", "gpu" or "tpu"."""
    names = ("auto", "reference", *registry.load(op, "api").BACKENDS)
    return [*map(implementation, names), *_other_forms(op, platform)]


def default_names(op: str, platform: str) -> tuple[str, ...]:
    """Candidates that run by default; peers always run by default."""
    native = ("reference",) if platform == "cpu" else registry.native(op, platform)
    return ("auto", "xla", *native, *(x.name for x in _other_forms(op, platform)))


def implementation(name: str) -> Candidate:
    """Candidate for an implementation of the op; "auto": the automatic choice."""
    return Candidate(name=name, build=lambda workload: workload.build(None if name == "auto" else name))


def _other_forms(op: str, platform: str) -> list[Candidate]:
    """Forms outside the op's package."""
    if op == "sliding_window" and platform != "gpu":
        return [Candidate(name="jax_nn", build=_window, kinds=SEQUENCE_KINDS)]
    if op != "taylor_attention":
        return []
    attention = Candidate(
        name="softmax", build=lambda workload: by_kind(softmax.jax_attention(platform), workload), kinds=SEQUENCE_KINDS,
        inputs=softmax_inputs, truth=lambda workload: by_kind(softmax.truth, workload), same_function=False,
    )  # fmt: skip
    naive = Candidate(name="naive", build=lambda workload: by_kind(cumulative_sums, workload), kinds=SEQUENCE_KINDS)
    return [naive, attention] if platform == "cpu" else [attention]


def by_kind(forward: Callable, workload: Workload) -> Callable:
    """Function y = forward(q, k, v), for forward_backward with the gradients of all three."""

    def forward_backward(q, k, v, dy):
        y, pull_back = jax.vjp(forward, q, k, v)
        return y, pull_back(dy)

    return forward if workload.kind == "forward" else forward_backward


def _window(workload: Workload) -> Callable:
    return by_kind(softmax.jax_attention("cpu", int(workload.sizes["window"])), workload)


def cumulative_sums(q, k, v):
    """Listing 1 of Based, from eqs. 2-4: y_i = phi(q_i) cumsum(phi(k) v^T)_i / phi(q_i).cumsum(phi(k))_i.

    Materializes (t, b, h, 1 + k + k^2, v); phi(x) = [1, x / k^(1/4), (x x^T) / (2 k)^(1/2)].
    """
    group, dtype = q.shape[2] // k.shape[2], v.dtype
    q, k, v = (jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v))
    phi_q, phi_k, v = _paper_features(q), *(jnp.repeat(x, group, axis=2) for x in (_paper_features(k), v))
    zero = jnp.zeros((*phi_k.shape[1:], v.shape[3] + 1), jnp.float32)
    values = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)

    def add(total, token):
        total = total + token[0][..., :, None] * token[1][..., None, :]
        return total, total

    sums = jax.lax.scan(add, zero, (phi_k, values))[1]
    y = (phi_q[..., None] * sums).sum(-2)
    return jnp.moveaxis(y[..., :-1] / (y[..., -1:] + np.float32(EPS)), 0, 1).astype(dtype)


def _paper_features(x):
    k_dim = x.shape[-1]
    x = x * np.float32(k_dim**-0.25)
    products = (x[..., :, None] * x[..., None, :] * np.float32(0.5**0.5)).reshape(*x.shape[:-1], k_dim**2)
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, products], axis=-1)


def softmax_inputs(workload: Workload, seed: int) -> tuple:
    """The workload's values and cotangent, with queries and keys of the width of the values."""
    _, _, v, *cotangent = workload.inputs(seed)
    h = int(workload.sizes["h"])
    keys = jax.random.split(jax.random.key(seed + 3), 2)
    q, k = (
        jax.random.normal(key, (*v.shape[:2], heads, v.shape[3]), jnp.float32).astype(v.dtype)
        for key, heads in zip(keys, (h, v.shape[2]), strict=True)
    )
    return q, k, v, *cotangent
