"""The recurrence over chunks in plain XLA: a scan with three matmuls per step.

    y_c = mix_c (x_c + read_c S_c)                  S_{c+1} = Diag(keep_c) S_c + write_c^T y_c

Its transpose is the same recurrence from the last chunk to the first, with read and write exchanged, mix transposed:

    z_c = mix_c^T (dy_c + write_c U_{c+1})          U_c = Diag(keep_c) U_{c+1} + read_c^T z_c

U_c is the cotangent of S_c. From S and U, all gradients are sums over one chunk (`gradients`).
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.xla_chunks import precision_of, product


def recur(
    x, read, write, mix, keep, state, *, save_states: bool, reverse: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """One of the recurrences of the module docstring; in reverse, the arrays are dy, write, read, mix, keep.

    state: S before the first chunk (b, h, k, v) float32, in reverse U after the last; None: zeros. Returns y or z; S
    after the last chunk or U before the first; and S before or U after every chunk, (b, n, h, k, v), or None.
    """
    (b, t, h, v), size = x.shape, mix.shape[3]
    matmul, mixing = _matmul(x.dtype), "bhji,bhjv->bihv" if reverse else "bhij,bhjv->bihv"
    if state is None:
        state = jnp.zeros((b, h, read.shape[3], v), jnp.float32)

    def chunk(state, now):
        x, read, write, mix, keep = now
        mixed = x.astype(jnp.float32).swapaxes(1, 2) + matmul("bchk,bhkv->bhcv", read, state)
        y = matmul(mixing, mix, mixed)
        after = keep[..., None] * state + matmul("bchk,bchv->bhkv", write, y)
        saved = [state.astype(x.dtype)] * save_states
        return after, (y.astype(x.dtype), *saved)

    by_chunk = [z.reshape(b, -1, size, h, z.shape[3]) for z in (x, read, write)] + [mix, keep]
    last, (y, *states) = lax.scan(chunk, state, [z.swapaxes(0, 1) for z in by_chunk], reverse=reverse)
    return y.swapaxes(0, 1).reshape(b, t, h, v), last, states[0].swapaxes(0, 1) if save_states else None


def gradients(x, read, write, y, dy, dx, before, after) -> tuple[jax.Array, ...]:
    """Gradients of read, write, mix and keep, for all chunks at once.

    dx: z; before, after: S before and U after every chunk, (b, n, h, k, v).
    """
    size, matmul = x.shape[1] // before.shape[1], _matmul(x.dtype)

    def by_chunk(z):
        return z.astype(jnp.float32).reshape(z.shape[0], -1, size, *z.shape[2:])

    dread = matmul("bnchv,bnhkv->bnchk", by_chunk(dx), before).astype(read.dtype).reshape(read.shape)
    dwrite = matmul("bnchv,bnhkv->bnchk", by_chunk(y), after).astype(write.dtype).reshape(write.shape)
    mixed = by_chunk(x) + matmul("bnchk,bnhkv->bnchv", by_chunk(read), before)
    dtotal = by_chunk(dy) + matmul("bnchk,bnhkv->bnchv", by_chunk(write), after)
    dmix = matmul("bnihv,bnjhv->bnhij", dtotal, mixed).astype(x.dtype)
    dkeep = (before.astype(jnp.float32) * after.astype(jnp.float32)).sum(-1)
    return dread, dwrite, dmix, dkeep


def _matmul(dtype):
    """`einsum` of two arrays in float32, with the precision of `dtype`."""

    def matmul(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
        return product(spec, x.astype(jnp.float32), y.astype(jnp.float32), precision=precision_of(dtype))

    return matmul
