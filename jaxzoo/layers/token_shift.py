"""RWKV's token shift (Peng et al. 2023): every channel is a mixture of the token and the one before it."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.sequence_parallel import behind_halo


def token_shift(
    x: Float[Array, "b t d"],
    last: Float[Array, "b d"] | None = None,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t d"]:
    """The input of one token ago, in the dtype of `x`; zeros before the first token of a document.

    Args:
      x: inputs, any `t >= 0`.
      last: the input before `x`; None: zeros.
      segment_ids: int32; each run of equal ids in a row is one document.
    """

    def part(behind: Array, ids: Array | None) -> Array:
        shifted = behind[:, :-1]
        if ids is None:
            return shifted
        return jnp.where((ids[:, 1:] != ids[:, :-1])[..., None], jnp.zeros_like(shifted), shifted)

    return behind_halo(part, 1, x, old=None if last is None else last[:, None], segment_ids=segment_ids)


def mix(x: Float[Array, "... d"], shifted: Float[Array, "... d"], share: Float[Array, "d"]) -> Float[Array, "... d"]:
    """`share x + (1 - share) shifted`, channel by channel, in the dtype of `x`."""
    share = share.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    return share * x + (1 - share) * shifted


def last_input(last: Float[Array, "b d"], x: Float[Array, "b t d"]) -> Float[Array, "b d"]:
    """The last of all inputs after `x`, in the dtype of `last`."""
    return jnp.concatenate([last[:, None], x.astype(last.dtype)], axis=1)[:, -1]


def empty_last(batch_size: int, width: int, dtype: DTypeLike = jnp.float32) -> Float[Array, "b d"]:
    """The input before the first token: zeros."""
    return jnp.zeros((batch_size, width), dtype)
