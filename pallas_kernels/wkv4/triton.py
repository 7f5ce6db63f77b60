"""wkv4 in Triton: launches of `triton_kernels.py`.

Arrays of tokens that are read or written, 2 bytes per channel at 16 bits: k, v of all pieces but the last, then k, v, y
forward; k, v, dy of all but the first, then k, v, dy, dk, dv backward. The sums before every 16 tokens, two float32
numbers, add a half of an array to each pass. Calls with enough channels are not cut into pieces and have one kernel per
pass.
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.dispatch import multiprocessors
from pallas_kernels.triton_call import Launch, as_rows, like, run, unserved
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.wkv4.state import Wkv4State
from pallas_kernels.wkv4.sums import LOG2_E

CHUNK, WIDTH, WARPS = 16, 128, 2
"""Tokens between saved sums, channels and warps of a program."""
GRADIENT_WARPS = 4
"""Warps of the kernel of gradients, which keeps the sums of a chunk: with two channels per thread it spills."""
RESIDENT = 1024
"""Target number of channels per multiprocessor."""
LEAST_CHUNKS = 4
"""Minimum chunks of a piece."""


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    return unserved(p)


def saved_like(k, *_, **__):
    """Two numbers per channel before every 16 tokens."""
    rows, t, d = k.shape
    return like((rows, 2, -(-t // CHUNK), d), jnp.float32)


def forward(k, v, w, u, keep, state, options):
    """y, the last state or None, and the sums for `backward` or None (contract in `api.py`)."""

    def rows(k, v, w, u, keep, state):
        own = None
        if _pieces(k) > 1:
            (own,) = run(pieces_launch(k, v, w, keep))
        start = None if state is None else jnp.stack(state, axis=1)
        y, last, saved = run(forward_launch(k, v, w, u, keep, own, start, options))
        return y, Wkv4State(*(last[:, i] for i in range(3))) if options.return_state else None, saved

    return as_rows(rows)(k, v, *_by_row(k, w, u), keep, state)


def backward(k, v, w, u, keep, state, last_max, saved, dy, dstate, options):
    """Gradients of k, v, w, u and state (or None); saved: sums of `forward`; last_max: of the last state."""

    def rows(k, v, w, u, keep, largest, saved, dy, end):
        own = None
        if _pieces(k) > 1:
            (own,) = run(cotangents_launch(k, v, w, u, keep, saved, dy))
        dk, dv, dwu, start = run(gradients_launch(k, v, w, u, keep, saved, own, dy, end))
        dwu = dwu.sum(2)
        dstart = None
        if largest is not None:
            scale = jnp.exp2(start[:, 2] + LOG2_E * largest)  # at most 1
            dstart = Wkv4State(start[:, 0] * scale, start[:, 1] * scale, jnp.zeros_like(scale))
        return dk, dv, dwu[:, 0], dwu[:, 1], dstart

    end = None if dstate is None else jnp.stack([dstate.num, dstate.den, -last_max], axis=1)
    largest = None if state is None else state.max
    dk, dv, dw, du, dstart = as_rows(rows)(k, v, *_by_row(k, w, u), keep, largest, saved, dy, end)
    return dk, dv, dw.sum(0), du.sum(0), dstart


def pieces_launch(k, v, w, keep) -> Launch:
    """Sums of the pieces, (b, 3, pieces, d)."""
    from pallas_kernels.wkv4.triton_kernels import pieces_kernel

    grid = _grid(k, _pieces(k) - 1)
    return Launch(pieces_kernel, (k, v, w, keep), (_sums_like(k),), grid, _constants(k, keep), WARPS)


def forward_launch(k, v, w, u, keep, own, start, options) -> Launch:
    """y, the last sums (b, 3, d) and saved sums; start: (b, 3, d)."""
    from pallas_kernels.wkv4.triton_kernels import forward_kernel

    outputs = (
        like(k.shape, v.dtype),
        like((k.shape[0], 3, k.shape[2]), jnp.float32) if options.return_state else None,
        saved_like(k) if options.save_states else None,
    )
    flags = {"STATE_IN": start is not None, "STATE_OUT": options.return_state, "SAVE": options.save_states}
    inputs = k, v, w, u, keep, _seen(k, keep)[0], own, start
    return Launch(forward_kernel, inputs, outputs, _grid(k, _pieces(k)), _constants(k, keep) | flags, WARPS)


def cotangents_launch(k, v, w, u, keep, saved, dy) -> Launch:
    """Terms of the pieces in the cotangents before them, (b, 3, pieces, d)."""
    from pallas_kernels.wkv4.triton_kernels import cotangents_kernel

    inputs, grid = (k, v, w, u, keep, saved, dy), _grid(k, _pieces(k) - 1)
    return Launch(cotangents_kernel, inputs, (_sums_like(k),), grid, _constants(k, keep), WARPS)


def gradients_launch(k, v, w, u, keep, saved, own, dy, end) -> Launch:
    """dk, dv, dw and du (b, 2, pieces, d), and the cotangents before all tokens (b, 3, d); end: after them."""
    from pallas_kernels.wkv4.triton_kernels import gradients_kernel

    b, _, d = k.shape
    token = like(k.shape, k.dtype)
    outputs = token, token, like((b, 2, _pieces(k), d), jnp.float32), like((b, 3, d), jnp.float32)
    inputs = k, v, w, u, keep, _seen(k, keep)[1], saved, own, dy, end
    constants = _constants(k, keep) | {"STATE_OUT": end is not None}
    return Launch(gradients_kernel, inputs, outputs, _grid(k, _pieces(k)), constants, GRADIENT_WARPS)


def _by_row(k, *parameters):
    return [jnp.broadcast_to(x, (k.shape[0], k.shape[2])) for x in parameters]


def _length(k) -> int:
    """Tokens of a piece: whole rows if their channels fill the GPU, because pieces are read twice."""
    b, t, d = k.shape
    chunks, channels, cores = -(-t // CHUNK), b * -(-d // WIDTH) * WIDTH, multiprocessors()
    pieces = 1 if 3 * channels >= RESIDENT * cores else RESIDENT * cores // channels
    return CHUNK * min(chunks, max(LEAST_CHUNKS, -(-chunks // pieces)))


def _pieces(k) -> int:
    return -(-k.shape[1] // _length(k))


def _grid(k, pieces: int) -> tuple[int, int, int]:
    return -(-k.shape[2] // WIDTH), pieces, k.shape[0]


def _constants(k, keep) -> dict[str, int | bool]:
    sizes = {"T": k.shape[1], "D": k.shape[2], "LENGTH": _length(k), "CHUNK": CHUNK, "WIDTH": WIDTH}
    return sizes | {"DOCUMENTS": keep is not None}


def _sums_like(k):
    return like((k.shape[0], 3, _pieces(k), k.shape[2]), jnp.float32)


def _seen(k, keep) -> tuple[jax.Array | None, jax.Array | None]:
    """For each piece, (b, pieces) int32: the first earlier piece of its document, -1: its start is the row's; and one
    more than the last piece that sees its end, pieces + 1: the end of the row does."""
    if keep is None:
        return None, None
    length, pieces = _length(k), _pieces(k)
    cut = jnp.pad(keep, [(0, 0), (0, pieces * length - keep.shape[1])], constant_values=1)
    cut = cut.reshape(-1, pieces, length).min(2) == 0
    place = jnp.arange(pieces, dtype=jnp.int32)[None]
    low = lax.cummax(jnp.where(cut, place, -1), axis=1)
    high = lax.cummin(jnp.where(cut, place + 1, pieces + 1), axis=1, reverse=True)
    first, last = jnp.full_like(low[:, :1], -1), jnp.full_like(low[:, :1], pieces + 1)
    return jnp.concatenate([first, low[:, :-1]], axis=1), jnp.concatenate([high[:, 1:], last], axis=1)
