"""Both forms of the delta rule by Pallas kernels.

With `beta`, one kernel computes the values that tokens write, and decayed linear attention reads them. With G the sums
of log decays from the start of a chunk of 64 tokens and S the state before the chunk, token i writes

    v'_i = beta_i (v_i - exp(G_i) k_i S - sum_{j<i} exp(G_i - G_j) (k_i . k_j) v'_j)

so that V' = T Diag(beta) (V - exp(G) K S) with T = (I + A)^-1 and A_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i
(Yang et al. 2024, arXiv 2406.06484; Yang et al. 2025, arXiv 2412.06464). `delta_values` of `ut_transform` computes V'
from keys and values, and `gated_linear_attention` the outputs from q, k, V'. For decays per channel of keys wider than
64, `gated_linear_attention` also computes A: with rows of the identity as values, and a state that is reset before
every chunk, its outputs are the decayed products of keys.

A document starts with a decay of 0. Arrays between kernels have the dtype of v, also A of wider keys: rounding it to
bfloat16 changes the inverse by 0.001 (relative L2) for independent keys of length 1, by 0.01 for nearly repeated keys,
and by 0.07 if beta also reaches 2.

The cotangent of V' is rounded too. Without decay it is a sum over all later tokens, most of which the backward pass of
`delta_chunks` cancels: gradients of k, v and beta have a relative error of 0.00025 sqrt(t) (0.022 at 8,192 tokens on an
H200). With decays, t is the number of tokens that a decay reaches; at -0.1 per token the error is 0.004. So without
decay the general form is used, whose reverse recurrence carries the whole state; for widths that it does not support
the form above is used up to `UNDECAYED` tokens.

The general form uses the Hopper kernels of `pallas_kernels.delta_chunks.general_delta_rule`. Vectors u, which read the
state before the decay, are 0 at the first tokens of documents; u and z are rounded to the dtype of v.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxzoo.ops.segments import document_starts
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array
from pallas_kernels import delta_chunks as delta, gated_linear_attention as gated, ut_transform as ut
from pallas_kernels.delta_chunks import api as delta_backends, general_api, general_delta_rule
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.dispatch import may_run_by_default, mesh_objection
from pallas_kernels.gated_linear_attention import api as gated_backends
from pallas_kernels.gated_linear_attention.decayed_scores import sums_to_borders
from pallas_kernels.gated_linear_attention.xla import RESET, with_resets
from pallas_kernels.ut_transform import api as ut_backends

CHUNK = 64
"""Chunk length of the kernels."""
KERNELS = {"mosaic_gpu": "cuda", "triton": "cuda", "mosaic_tpu": "tpu"}
"""Platforms of the kernels by name; the names are the same in all packages."""
CHANNEL_KEYS = 64
"""Key width for which `delta_values` supports decays per channel."""
UNDECAYED = 4096
"""Tokens up to which rounding between the kernels is allowed without decay: gradients within 0.016."""
GENERAL_PACKAGES = ("delta_chunks", "gated_linear_attention", "ut_transform")
"""Packages whose code the kernels of the general form use: all must be verified."""
Form = Callable[..., tuple[Array, Array]]


def kernel_form(
    q: Array, k: Array, v: Array, *, channel: bool = False, general: bool = False, decayed: bool = True
) -> Form | None:
    """The function that computes the rule by kernels, sharded for the current mesh; None if no kernel applies.

    A kernel must support the shapes of q, k, v (b, t, h, .), be verified on the target devices, and run on the mesh.

    Args:
      channel: there is a decay per channel of the keys.
      general: the general form is asked for: `general_by_kernels`.
      decayed: there is a decay. Without one: `undecayed_by_kernels`, or `by_kernels` for at most `UNDECAYED` tokens.
    """
    if v.shape[1] == 0 or not q.dtype == k.dtype == v.dtype:
        return None
    if (general or not decayed) and _serve_general(k, v):
        rule = general_by_kernels if general else undecayed_by_kernels
    elif general or (not decayed and v.shape[1] > UNDECAYED):
        return None
    elif any(_serve(name, k, v, channel) for name in KERNELS):
        rule = by_kernels
    else:
        return None
    form: Any = on_mesh(rule, functools.partial(_sharded, rule), v, k)
    if form is rule:
        return rule if mesh_objection("") is None else None
    return None if "sequence_axis" in form.keywords else form


def _serve(name: str, k: Array, v: Array, channel: bool) -> bool:
    """Whether the kernels of a name support all three calls."""
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    size: dict[str, Any] = {"b": b, "h": h, "k": k_dim, "dtype": v.dtype}
    delta_chunks = delta_backends.Problem(t=_whole(t), v=v_dim, chunk=CHUNK, **size)
    scores, outputs = (gated_backends.Problem(t=t, v=n, channel=channel, **size) for n in (CHUNK, v_dim))
    by_scores = channel and k_dim != CHANNEL_KEYS
    decay, size["k"] = "channel" if channel and not by_scores else "none", 0 if by_scores else k_dim
    transform = ut_backends.Problem(t=_whole(t), decay=decay, **size)

    def serves(op: str, backends: Any, *problems: Any) -> bool:
        kernel = backends.BACKENDS.get(name)
        if kernel is None or not may_run_by_default(KERNELS[name], op, name):
            return False
        allowed = None, mesh_objection(f"sharded_{op}")
        return all(kernel.objection(problem) in allowed for problem in problems)

    return (
        serves("delta_chunks", delta_backends, delta_chunks)
        and serves("gated_linear_attention", gated_backends, *[scores] * by_scores, outputs)
        and serves("ut_transform", ut_backends, transform)
    )


def _serve_general(k: Array, v: Array) -> bool:
    """Whether the kernels of the general form support the call."""
    if not all(may_run_by_default("cuda", op, "mosaic_gpu") for op in GENERAL_PACKAGES):
        return False
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    problem = GeneralProblem(b=b, t=_whole(t), h=h, k=k_dim, v=v_dim, dtype=v.dtype)
    objection = general_api.BACKENDS["mosaic_gpu"].objection(problem)
    return objection in (None, mesh_objection(GeneralProblem.ON_MESH))


def by_kernels(
    q: Array, k: Array, v: Array, beta: Array, log_decay: Array | None, segment_ids: Array | None, state: Array | None
) -> tuple[Array, Array]:
    """Differentiable `delta_rule` of t >= 1 tokens: y (b, t, h, v) in the dtype of v, and the final state.

    log_decay (b or 1, t, h or 1, k or 1) is float32 or None (no decay), state (b, h, k, v) float32 or None (zeros).
    """
    b, t, h, _ = k.shape
    decay = with_resets(log_decay, segment_ids)
    if decay is not None:
        decay = jnp.broadcast_to(decay, (b, t, h, decay.shape[3]))

    def padded(x: Array) -> Array:
        return jnp.pad(x, [(0, 0), (0, _whole(t) - t)] + [(0, 0)] * (x.ndim - 2))

    if decay is not None and decay.shape[3] == 1:
        decays = decay[..., 0]
    else:
        decays = jnp.zeros(k.shape[:3], jnp.float32) if decay is None else decay
    keys, values, betas = padded(k), padded(v), padded(beta)
    whole = None if decay is None else padded(decays)
    if whole is not None and whole.ndim == 4 and k.shape[3] != CHANNEL_KEYS:
        # `delta_values` with scores of the gated kernel
        read, write, keep = _borders(keys, whole)
        mix = ut.ut_inverse(_scores(keys, whole), betas)
        written = delta.delta_chunks(values, read, write, mix, keep, initial_state=state)
    else:
        written, keys = ut.delta_values(keys, values, betas, whole, initial_state=state)
    return gated.gated_linear_attention(q, keys[:, :t], written[:, :t], decays, initial_state=state, return_state=True)


def undecayed_by_kernels(
    q: Array, k: Array, v: Array, beta: Array, log_decay: None, segment_ids: Array | None, state: Array | None
) -> tuple[Array, Array]:
    """`by_kernels` without decay, through the general form with u = k, z = -beta k, and beta k for k."""
    written = (beta.astype(jnp.float32)[..., None] * k.astype(jnp.float32)).astype(k.dtype)
    return general_by_kernels(q, written, v, k, -written, log_decay, segment_ids, state)


def general_by_kernels(
    q: Array,
    k: Array,
    v: Array,
    u: Array,
    z: Array,
    log_decay: Array | None,
    segment_ids: Array | None,
    state: Array | None,
) -> tuple[Array, Array]:
    """`by_kernels` for the general form."""
    decay = with_resets(log_decay, segment_ids)
    decay = jnp.broadcast_to(jnp.zeros((), jnp.float32) if decay is None else decay, k.shape)
    u, z = u.astype(v.dtype), z.astype(v.dtype)
    starts = document_starts(segment_ids)
    if starts is not None:
        u = jnp.where(starts[..., None, None], jnp.zeros_like(u), u)
    return general_delta_rule(q, k, v, u, z, decay, initial_state=state, return_state=True)


def _sharded(
    rule: Form, *arrays: Array | None, batch_axes: tuple[str, ...], head_axes: tuple[str, ...]
) -> tuple[Array, Array]:
    """Applies `rule` with batch and heads sharded over devices."""
    *of_tokens, log_decay, _, _ = arrays
    decays = P()
    if log_decay is not None:
        decays = P(batch_axes if len(log_decay) > 1 else None, None, head_axes if log_decay.shape[2] > 1 else None)
    tokens, states = P(batch_axes, None, head_axes), P(batch_axes, head_axes)
    specs = (*[tokens] * len(of_tokens), decays, P(batch_axes), states)
    return jax.shard_map(rule, in_specs=specs, out_specs=(tokens, states), check_vma=False)(*arrays)


@functools.partial(jax.checkpoint, prevent_cse=False)
def _scores(k: Array, decay: Array) -> Array:
    """A / beta per chunk, (b, n, h, c, c); not masked."""
    b, t, h, _ = k.shape
    place = jnp.arange(t) % CHUNK
    rows = (place[:, None] == jnp.arange(CHUNK)[None]).astype(k.dtype)[None, :, None]
    decays = jnp.where((place == 0)[None, :, None, None], RESET, decay)
    return _by_chunk(gated.gated_linear_attention(k, k, jnp.broadcast_to(rows, (b, t, h, CHUNK)), decays))


@functools.partial(jax.checkpoint, prevent_cse=False)
def _borders(k: Array, decay: Array) -> tuple[Array, Array, Array]:
    """Arguments read, write and keep of `delta_chunks`."""
    b, t, h, k_dim = k.shape
    by_chunk = _by_chunk(decay)
    from_start, to_end = (
        jnp.exp(x).reshape(by_chunk.shape).swapaxes(2, 3)
        for x in sums_to_borders(by_chunk.reshape(-1, h, CHUNK, decay.shape[3]))
    )
    keys = k.astype(jnp.float32).reshape(b, -1, CHUNK, h, k_dim)
    read, write = ((keys * x).astype(k.dtype).reshape(k.shape) for x in (-from_start, to_end))
    keep = jnp.broadcast_to(from_start[:, :, -1], (b, t // CHUNK, h, k_dim))
    return read, write, keep


def _by_chunk(x: Array) -> Array:
    """(b, t, h, .) -> (b, n, h, c, .)."""
    return x.reshape(x.shape[0], -1, CHUNK, *x.shape[2:]).swapaxes(2, 3)


def _whole(t: int) -> int:
    """`t` rounded up to whole chunks."""
    return -(-t // CHUNK) * CHUNK
