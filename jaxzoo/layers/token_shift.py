"""Token shift of RWKV (Peng et al. 2023): each channel mixes the token with the previous token."""

import jax.numpy as jnp
from jax.tree_util import Partial

from jaxzoo.layers.variables import along_last
from jaxzoo.parallel.sequence_parallel import apply_with_halo
from jaxzoo.utils.array_typing import Array, Float, Int


def token_shift(
    x: Float[Array, "b t d"], last: Float[Array, "b d"] | None = None, *, segment_ids: Int[Array, "b t"] | None = None
) -> Float[Array, "b t d"]:
    """Inputs of the previous tokens, in the dtype of `x`; zeros before the first token of a document.

    Args:
      x: inputs, any `t >= 0`.
      last: the input before `x`; None: zeros.
      segment_ids: int32; each run of equal ids in a row is one document.
    """
    return apply_with_halo(Partial(_shift), 1, x, old=None if last is None else last[:, None], segment_ids=segment_ids)


def _shift(extended: Array, segment_ids: Array | None) -> Array:
    """All inputs but the last; zeros if the next token belongs to another document."""
    shifted = extended[:, :-1]
    if segment_ids is None:
        return shifted
    starts = segment_ids[:, 1:] != segment_ids[:, :-1]
    return jnp.where(starts[..., None], jnp.zeros_like(shifted), shifted)


def mix(x: Float[Array, "... d"], shifted: Float[Array, "... d"], share: Float[Array, "d"]) -> Float[Array, "... d"]:
    """`share x + (1 - share) shifted`, channel by channel, in the dtype of `x`."""
    share = along_last(share, x)
    return share * x + (1 - share) * shifted
