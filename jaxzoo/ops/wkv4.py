"""The weighted key-value mean of RWKV-4 (Peng et al. 2023), stable at any keys and decays.

For every channel, with a decay w > 0 and a bonus u for the token itself:

    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (sum_{i<t} e^{-(t-1-i) w + k_i} + e^{u + k_t})

The sums over the past are `e^max num` and `e^max den`, where `max` is the largest exponent in them, so that nothing
overflows and `den` is never small. `max` is a choice of scale that cancels in every output, so no gradient goes through
it. Computed in chunks, with the memory of the inputs and one state per chunk (`pallas_kernels/wkv4/xla.py`); on devices
where they are verified, by the Pallas kernels of `pallas_kernels/wkv4`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from jaxzoo.parallel.sequence_parallel import Composition, scan_in_parts
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float, Int
from jaxzoo.utils.explicit_mesh import recurrence_on_any_mesh
from pallas_kernels.dispatch import may_run_by_default
from pallas_kernels.wkv4 import sharded_wkv4, wkv4 as kernel_wkv4
from pallas_kernels.wkv4.state import EMPTY, Wkv4State as Wkv4State, empty_state as empty_state
from pallas_kernels.wkv4.xla import forward, keep_of, read


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
    """The equation of the module docstring for `t >= 0` tokens from any state.

    Differentiable in all float arguments but `initial_state.max`, through the output and the final state.

    Args:
      k: logarithms of the weights.
      v: values.
      w: decay a token, positive: the past loses the factor e^-w.
      u: bonus of the token itself.
      segment_ids: packed documents, int32: each is one contiguous run of equal ids, and nothing of an earlier one is
        seen. The state returned is that of the last document.
      initial_state: the sums over the tokens before; None: there are none.
      chunk_size: tokens of a chunk; changes memory and speed alone. None: the kernels where they serve the call, else
        64; on a GPU, where each chunk takes a dozen launches, as many as `pallas_kernels.xla_chunks` allows.

    Returns:
      wkv in the dtype of `v`, and the state after the last token. O(t) time a channel, and memory for the inputs and
      t / chunk_size states. If time is sharded over devices, they exchange only states, and no kernel runs.
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
    """The op of `pallas_kernels` for the current mesh; None: its kernels are not verified on the devices that this is
    traced for, or cannot serve the call because of its dtypes or of time that is sharded."""
    if k.dtype != v.dtype or not any(may_run_by_default(platform, "wkv4") for platform in ("cuda", "tpu")):
        return None
    heads = jax.ShapeDtypeStruct((*k.shape, 1), k.dtype)
    form: Any = on_mesh(kernel_wkv4, _sharded, heads, heads)
    return None if "sequence_axis" in getattr(form, "keywords", {}) else form


def _sharded(*arrays: Array, head_axes: tuple[str, ...], **options: Any) -> Any:
    """`sharded_wkv4` on a mesh that shares out channels like heads."""
    return sharded_wkv4(*arrays, channel_axes=head_axes, **options)


def _in_chunks(
    w: Array, u: Array, tokens: tuple, segment_ids: Array | None, state: Wkv4State, *, chunk_size: int | None
) -> tuple[Array, Wkv4State]:
    """`wkv4` chunk by chunk, of keys and values."""
    k, v = tokens
    return forward(k, v, w, u, keep_of(segment_ids), state, chunk_size=chunk_size)


def _log_kept(w: Float[Array, "d"], tokens: tuple) -> Float[Array, "1 d"]:
    """Logarithm of what all tokens keep of the sums before them."""
    return -w[None] * tokens[0].shape[1]


def _after(log_kept: Float[Array, "#b d"], before: Wkv4State, own: Wkv4State) -> Wkv4State:
    """The sums of some tokens, given those of the tokens before and of their own."""
    past, new = lax.stop_gradient(before.max) + log_kept, lax.stop_gradient(own.max)
    largest = lax.stop_gradient(jnp.maximum(past, new))
    past, new = jnp.exp(past - largest), jnp.exp(new - largest)
    return Wkv4State(past * before.num + new * own.num, past * before.den + new * own.den, largest)


LOG_DECAYED = Composition(_after, jnp.add, 0.0, EMPTY)
"""Parts of a sequence, each with the logarithm of what it keeps."""


def wkv4_step(
    state: Wkv4State, k: Float[Array, "b d"], v: Float[Array, "b d"], *, w: Float[Array, "d"], u: Float[Array, "d"]
) -> tuple[Float[Array, "b d"], Wkv4State]:
    """One token: `wkv4` with t = 1, at O(1) per channel."""
    dtype, (k, v, w, u) = v.dtype, (x.astype(jnp.float32) for x in (k, v, w, u))
    y = read(state, k, v, u[None])
    largest = lax.stop_gradient(jnp.maximum(state.max - w[None], k))
    past, new = jnp.exp(state.max - w[None] - largest), jnp.exp(k - largest)
    return y.astype(dtype), Wkv4State(past * state.num + new * v, past * state.den + new, largest)
