"""The delta rule by Pallas kernels: what tokens write, by `delta_chunks`, then decayed linear attention over it.

With G the sums of log decays from the start of a chunk of 64 tokens and S the state before the chunk, token i writes

    v'_i = beta_i (v_i - exp(G_i) k_i S - sum_{j<i} exp(G_i - G_j) (k_i . k_j) v'_j)

so that V' = T Diag(beta) (V - exp(G) K S) with T = (I + A)^-1 and A_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i
(Yang et al. 2024, arXiv 2406.06484; Yang et al. 2025, arXiv 2412.06464). `delta_values` of `ut_transform` makes V' of
keys and values; the outputs are those of `gated_linear_attention` for q, k, V'. It also makes A where decays are per
channel of keys wider than 64: with rows of the identity as values, and a state that is emptied before every chunk, its
outputs are the decayed products of keys.

Documents are decays of 0. What lies between kernels has the dtype of v, A of wider keys too: rounded to bfloat16 it
changes the inverse by 0.001 (relative L2) with independent keys of length 1, by 0.01 where they nearly repeat, and by
0.07 with beta up to 2 besides.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxzoo.array_typing import Array
from jaxzoo.sharding import on_mesh
from pallas_kernels import delta_chunks as delta, gated_linear_attention as gated, ut_transform as ut
from pallas_kernels.delta_chunks import backends as delta_backends
from pallas_kernels.dispatch import may_run_by_default, mesh_objection
from pallas_kernels.gated_linear_attention import backends as gated_backends
from pallas_kernels.gated_linear_attention.decayed_scores import sums_to_borders
from pallas_kernels.gated_linear_attention.xla import RESET, with_resets
from pallas_kernels.ut_transform import backends as ut_backends

CHUNK = 64
"""Tokens of a chunk of the kernels."""
KERNELS = {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"}
"""By platform, in all packages."""
CHANNEL_KEYS = 64
"""Width of the keys with which `delta_values` serves decays per channel."""
Form = Callable[..., tuple[Array, Array]]


def kernel_form(q: Array, k: Array, v: Array, *, channel: bool) -> Form | None:
    """`by_kernels`, or its form for the current mesh, for queries, keys and values (b, t, h, .).

    channel: whether there is a decay per channel of the keys. None: a kernel does not serve the call, is not verified
    on the devices that this is traced for, or cannot run on this mesh.
    """
    if v.shape[1] == 0 or not q.dtype == k.dtype == v.dtype:
        return None
    if not any(_serve(platform, k, v, channel) for platform in KERNELS):
        return None
    form: Any = on_mesh(by_kernels, _sharded, v, k)
    if form is by_kernels:
        return by_kernels if mesh_objection("") is None else None
    return None if "sequence_axis" in form.keywords else form


def _serve(platform: str, k: Array, v: Array, channel: bool) -> bool:
    """Whether the kernels of a platform serve all calls."""
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    size: dict[str, Any] = {"b": b, "h": h, "k": k_dim, "dtype": v.dtype}
    delta_chunks = delta_backends.Problem(t=_whole(t), v=v_dim, chunk=CHUNK, **size)
    scores, outputs = (gated_backends.Problem(t=t, v=n, channel=channel, **size) for n in (CHUNK, v_dim))
    by_scores = channel and k_dim != CHANNEL_KEYS
    decay, size["k"] = "channel" if channel and not by_scores else "none", 0 if by_scores else k_dim
    transform = ut_backends.Problem(t=_whole(t), decay=decay, **size)

    def serves(op: str, backends: Any, *problems: Any) -> bool:
        if not may_run_by_default(platform, op):
            return False
        kernel, allowed = backends.BACKENDS[KERNELS[platform]], (None, mesh_objection(f"sharded_{op}"))
        return all(kernel.objection(problem) in allowed for problem in problems)

    return (
        serves("delta_chunks", delta_backends, delta_chunks)
        and serves("gated_linear_attention", gated_backends, *[scores] * by_scores, outputs)
        and serves("ut_transform", ut_backends, transform)
    )


def by_kernels(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    log_decay: Array | None,
    segment_ids: Array | None,
    state: Array | None,
) -> tuple[Array, Array]:
    """y (b, t, h, v) in the dtype of v, and the last state, of `delta_rule` with t >= 1; differentiable.

    log_decay (b or 1, t, h or 1, k or 1) float32, None: no decay; state (b, h, k, v) float32, None: zeros.
    """
    b, t, h, _ = k.shape
    decay = with_resets(log_decay, segment_ids)
    if decay is not None:
        decay = jnp.broadcast_to(decay, (b, t, h, decay.shape[3]))

    def padded(x: Array) -> Array:
        return jnp.pad(x, [(0, 0), (0, _whole(t) - t)] + [(0, 0)] * (x.ndim - 2))

    decays, arrays = _decays(k, decay), (padded(k), padded(v), padded(beta))
    if decays.ndim == 4 and k.shape[3] != CHANNEL_KEYS:
        written, keys = _values_by_scores(*arrays, padded(decays), state)
    else:
        written, keys = ut.delta_values(*arrays, None if decay is None else padded(decays), initial_state=state)
    return gated.gated_linear_attention(q, keys[:, :t], written[:, :t], decays, initial_state=state, return_state=True)


def _sharded(
    q: Array, k: Array, v: Array, beta: Array, log_decay: Array | None, segment_ids: Array | None, state: Array | None,
    *, batch_axes: tuple[str, ...], head_axes: tuple[str, ...],
) -> tuple[Array, Array]:  # fmt: skip
    """`by_kernels` with each device on its share of batch and heads."""
    decays = P()
    if log_decay is not None:
        decays = P(batch_axes if len(log_decay) > 1 else None, None, head_axes if log_decay.shape[2] > 1 else None)
    tokens, states = P(batch_axes, None, head_axes), P(batch_axes, head_axes)
    specs = (tokens, tokens, tokens, tokens, decays, P(batch_axes), states)
    form = jax.shard_map(by_kernels, in_specs=specs, out_specs=(tokens, states), check_vma=False)
    return form(q, k, v, beta, log_decay, segment_ids, state)


def _values_by_scores(k: Array, v: Array, beta: Array, decay: Array, state: Array | None) -> tuple[Array, Array]:
    """`delta_values` of decays (b, t, h, k), with scores of the gated kernel."""
    read, write, keep = _borders(k, decay)
    mix = ut.ut_inverse(_scores(k, decay), beta)
    return delta.delta_chunks(v, read, write, mix, keep, initial_state=state), k


@functools.partial(jax.checkpoint, prevent_cse=False)
def _scores(k: Array, decay: Array) -> Array:
    """A / beta of every chunk, (b, n, h, c, c); not masked."""
    b, t, h, _ = k.shape
    place = jnp.arange(t) % CHUNK
    rows = (place[:, None] == jnp.arange(CHUNK)[None]).astype(k.dtype)[None, :, None]
    decays = jnp.where((place == 0)[None, :, None, None], RESET, decay)
    return _by_chunk(gated.gated_linear_attention(k, k, jnp.broadcast_to(rows, (b, t, h, CHUNK)), decays))


@functools.partial(jax.checkpoint, prevent_cse=False)
def _borders(k: Array, decay: Array) -> tuple[Array, Array, Array]:
    """read, write and keep of `delta_chunks`."""
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


def _decays(k: Array, decay: Array | None) -> Array:
    """Log decays as `gated_linear_attention` takes them."""
    if decay is None:
        return jnp.zeros(k.shape[:3], jnp.float32)
    return decay[..., 0] if decay.shape[3] == 1 else decay


def _by_chunk(x: Array) -> Array:
    """(b, t, h, .) -> (b, n, h, c, .)."""
    return x.reshape(x.shape[0], -1, CHUNK, *x.shape[2:]).swapaxes(2, 3)


def _whole(t: int) -> int:
    """Tokens of whole chunks."""
    return -(-t // CHUNK) * CHUNK
