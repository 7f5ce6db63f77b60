"""Weighted mean of values of RWKV-4 (Peng et al. 2023), stable for any keys and decays.

For each channel, with a decay w > 0 and a bonus u for the token itself:

    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (sum_{i<t} e^{-(t-1-i) w + k_i} + e^{u + k_t})

The sums over the past are stored as `e^max num` and `e^max den`, with `max` their largest exponent, so that nothing
overflows and `den` is never small. `max` cancels in every output and has no gradient. Computed in chunks, with the
memory of the inputs and one state per chunk (`pallas_kernels/wkv4/xla.py`), or by the kernels of `pallas_kernels/wkv4`
on devices where they are verified.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from jaxzoo.ops.naive import scan_tokens
from jaxzoo.parallel.sequence_parallel import Composition, scan_in_parts
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float, Int
from jaxzoo.utils.explicit_mesh import recurrence_on_any_mesh
from pallas_kernels.dispatch import may_run_by_default
from pallas_kernels.wkv4 import sharded_wkv4, wkv4 as kernel_wkv4
from pallas_kernels.wkv4.state import EMPTY, Wkv4State as Wkv4State, empty_state as empty_state
from pallas_kernels.wkv4.xla import forward, keep_of, read


def naive_wkv4(
    k: Float[Array, "b t d"],
    v: Float[Array, "b t d"],
    *,
    w: Float[Array, "d"],
    u: Float[Array, "d"],
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Wkv4State,
) -> tuple[Float[Array, "b t d"], Wkv4State]:
    """Token-by-token form of `wkv4`, which overflows for large keys: the final state has `max` 0."""

    def token(sums: tuple, x: tuple) -> tuple[tuple, Array]:
        (num, den), (k, v) = sums, x
        past, new, own = (jnp.exp(x) for x in (-w[None], k, u[None] + k))
        return (past * num + new * v, past * den + new), (num + own * v) / (den + own)

    scale = jnp.exp(initial_state.max)
    y, (num, den) = scan_tokens(token, (scale * initial_state.num, scale * initial_state.den), (k, v), segment_ids)
    return y, Wkv4State(num, den, jnp.zeros_like(num))


@recurrence_on_any_mesh
def wkv4(
    k: Float[Array, "b t d"],
    v: Float[Array, "b t d"],
    *,
    w: Float[Array, "d"],
    u: Float[Array, "d"],
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Wkv4State | None = None,
    chunk_size: int | None = None,
) -> tuple[Float[Array, "b t d"], Wkv4State]:
    """Applies the equation of the module docstring to `t >= 0` tokens, from any state.

    Differentiable in all float arguments but `initial_state.max`, through the output and the final state.

    Args:
      k: logarithms of the weights.
      w: decay rate, positive: each token multiplies the past by e^-w.
      u: bonus of the token itself.
      segment_ids: ids of packed documents, int32; each document is one contiguous run of equal ids and sees no other.
        The returned state is the last document's.
      initial_state: sums over earlier tokens; None: zeros.
      chunk_size: tokens per chunk; affects only memory and speed. None: a kernel if one supports the call, otherwise
        64, or on a GPU, where each chunk takes a dozen launches, as many as `pallas_kernels.xla_chunks` allows.

    Returns:
      wkv in the dtype of `v`, and the state after the last token. O(t) time per channel, and memory for the inputs and
      t / chunk_size states. If time is sharded, devices exchange only states, and no kernel is used.
    """
    form = _kernel_form(k, v) if chunk_size is None else None
    if form is not None:
        return form(k, v, w, u, segment_ids=segment_ids, initial_state=initial_state, return_state=True)
    empty = empty_state(k.shape[0], k.shape[2])
    u, w = (x.astype(jnp.float32) for x in (u, w))
    state = empty if initial_state is None else initial_state
    run = Partial(functools.partial(_in_chunks, chunk_size=chunk_size), w, u)
    return scan_in_parts(run, Partial(_log_kept, w), (k, v), segment_ids, state, empty, LOG_DECAYED)


def _kernel_form(k: Array, v: Array) -> Any:
    """The op of `pallas_kernels` for the current mesh; None if its kernels are not verified on the target devices, k
    and v differ in dtype, or time is sharded."""
    if k.dtype != v.dtype or not any(may_run_by_default(platform, "wkv4") for platform in ("cuda", "tpu")):
        return None
    heads = jax.ShapeDtypeStruct((*k.shape, 1), k.dtype)
    form: Any = on_mesh(kernel_wkv4, _sharded, heads, heads)
    return None if "sequence_axis" in getattr(form, "keywords", {}) else form


def _sharded(*arrays: Array, head_axes: tuple[str, ...], **options: Any) -> Any:
    """`sharded_wkv4` with channels sharded like heads."""
    return sharded_wkv4(*arrays, channel_axes=head_axes, **options)


def _in_chunks(
    w: Array, u: Array, tokens: tuple, segment_ids: Array | None, state: Wkv4State, *, chunk_size: int | None
) -> tuple[Array, Wkv4State]:
    """Computes `wkv4` in chunks; tokens are keys and values."""
    k, v = tokens
    return forward(k, v, w, u, keep_of(segment_ids), state, chunk_size=chunk_size)


def _log_kept(w: Float[Array, "d"], tokens: tuple) -> Float[Array, "1 d"]:
    """Logarithm of the decay of the sums over all tokens."""
    return -w[None] * tokens[0].shape[1]


def _after(log_kept: Float[Array, "#b d"], before: Wkv4State, own: Wkv4State) -> Wkv4State:
    """Sums over two consecutive parts of a sequence, from the sums over each part."""
    past, new = lax.stop_gradient(before.max) + log_kept, lax.stop_gradient(own.max)
    largest = lax.stop_gradient(jnp.maximum(past, new))
    past, new = jnp.exp(past - largest), jnp.exp(new - largest)
    return Wkv4State(past * before.num + new * own.num, past * before.den + new * own.den, largest)


LOG_DECAYED = Composition(_after, jnp.add, 0.0, EMPTY)
"""Composition of parts of a sequence, each with its log decay."""


def wkv4_step(
    state: Wkv4State, k: Float[Array, "b d"], v: Float[Array, "b d"], *, w: Float[Array, "d"], u: Float[Array, "d"]
) -> tuple[Float[Array, "b d"], Wkv4State]:
    """One token: `wkv4` with t = 1, at O(1) per channel."""
    dtype, (k, v, w, u) = v.dtype, (x.astype(jnp.float32) for x in (k, v, w, u))
    y = read(state, k, v, u[None])
    largest = lax.stop_gradient(jnp.maximum(state.max - w[None], k))
    past, new = jnp.exp(state.max - w[None] - largest), jnp.exp(k - largest)
    return y.astype(dtype), Wkv4State(past * state.num + new * v, past * state.den + new, largest)
