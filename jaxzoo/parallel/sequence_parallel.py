"""Sequences in parts: time sharded over the mesh axis `sequence`, for ops without a kernel.

Each device runs an op on its own tokens, inside a `jax.shard_map` over that axis alone (the compiler partitions batch,
heads and channels). It needs little of the tokens before:

- `apply_with_halo`: a window of a few tokens gets the tokens before its part;
- `scan_in_parts`: a recurrence gets the state before its part. With U_i the state that part i reaches from the empty
  one and F_i the factor of the state before it, `start_i = F_{i-1} start_{i-1} + U_{i-1}`: an exclusive prefix of
  (F, U), in `1 + log2(n - 1)` exchanges of one state between devices at distance 1, 1, 2, 4, .. . Each part runs twice,
  the first time without outputs;
- `whole_sequences`: a long convolution gets the whole sequences of a share of the channels.

Gradients are exchanged in the reverse direction. A function that reads other arrays takes them as arguments of a
`jax.tree_util.Partial`, which moves them to the devices; closed over, they would be arrays of another mesh.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jax.tree_util import Partial

from jaxzoo.parallel.sharding import RULES, constrain, sequence_devices
from jaxzoo.utils.array_typing import Array, Int
from pallas_kernels.halo import with_halo

Tokens = Any
"""A pytree of arrays `(b, t, ...)`."""
State = Any
"""A pytree of arrays `(b, ...)`."""

(AXIS,) = RULES["time"]


class Composition(NamedTuple):
    """Composition of consecutive parts of a recurrence."""

    after: Callable[[Any, State, State], State]
    """(F of a part, state before it, state that it reaches from the empty one) -> the state after it."""
    both: Callable[[Array, Array], Array]
    """F of two parts, the earlier first, as one."""
    keeps: float | np.ndarray
    """F that keeps the state; an array has the axes of F, of size 1 if all entries are equal."""
    forgets: float | np.ndarray
    """F that drops the state."""


def affine(factor: Array, before: State, own: State) -> State:
    """`F before + own` for leaves that may have more axes than F `(b, ...)`."""
    return jax.tree.map(lambda x, y: _wide(factor, x.ndim).astype(x.dtype) * x + y, before, own)


AFFINE = Composition(affine, jnp.multiply, 1.0, 0.0)
"""Recurrences `S <- F S + U`."""


def apply_with_halo(
    function: Partial,
    size: int,
    x: Tokens,
    *,
    old: Tokens | None = None,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Any:
    """`function(extended, segment_ids)` on each part; an output depends on its own and the `size` inputs before it.

    Args:
      function: (inputs `(b, size + t, ...)`, their segment_ids) -> outputs of the last t. Before the first token the
        inputs are zeros of any segment.
      size: tokens of the halo.
      x: inputs `(b, t, ...)`, one array or several.
      old: previous inputs `(b, size, ...)`; None: zeros.
      segment_ids: segment ids of the inputs; None: `function` gets None.
    """

    if old is None:
        old = jax.tree.map(lambda y: jnp.zeros((y.shape[0], size, *y.shape[2:]), y.dtype), x)
    if segment_ids is not None:
        x, old = (x, segment_ids), (old, jnp.zeros((segment_ids.shape[0], size), segment_ids.dtype))
    else:
        x, old = (x, None), (old, None)
    if sequence_devices(jax.tree.leaves(x)[0].shape[1]) == 1:
        return function(*jax.tree.map(lambda y, before: jnp.concatenate([before.astype(y.dtype), y], axis=1), x, old))

    def part(function: Partial, x: Tokens, old: Tokens) -> Any:
        extend = functools.partial(with_halo, size=size, axis=AXIS, parts=lax.axis_size(AXIS))
        return function(*jax.tree.map(lambda y, before: extend(y, old=before), x, old))

    return _in_parts(part, (False, True, False), True)(function, x, old)


def scan_in_parts(
    run: Partial,
    factor: Partial,
    tokens: Tokens,
    segment_ids: Int[Array, "b t"] | None,
    initial: State,
    empty: State,
    composition: Composition = AFFINE,
) -> tuple[Array, State]:
    """`run(tokens, segment_ids, initial)`, part by part.

    Args:
      run: (tokens, segment_ids, state) -> (outputs `(b, t, ...)`, state after them). It takes the state as belonging to
        the document of its first token.
      factor: F of tokens, `(b or 1, ...)`, without documents.
      tokens: arrays `(b, t, ...)`.
      segment_ids: packed documents, or None.
      initial: the state before the tokens.
      empty: the state before a document.
      composition: how parts follow each other.
    """
    if sequence_devices(jax.tree.leaves(tokens)[0].shape[1]) == 1:
        return run(tokens, segment_ids, initial)

    def part(run: Partial, factor: Partial, tokens: Tokens, ids: Array | None, initial: State, empty: State) -> Any:
        n = lax.axis_size(AXIS)
        index = lax.axis_index(AXIS)
        kept = factor(tokens)
        _, own = run(tokens, ids, empty)
        continues = None
        if ids is not None:
            continues = _from_before(ids[:, -1], ids[:, 0], 1) == ids[:, 0]
            kept = jnp.where(_wide(continues & (ids[:, 0] == ids[:, -1]), kept.ndim), kept, composition.forgets)
        start = _prefix((kept, own), initial, empty, composition)
        if continues is not None:
            start = jax.tree.map(lambda x, y: jnp.where(_wide(continues, x.ndim), x, y), start, empty)
        y, after = run(tokens, ids, start)
        last = jax.tree.map(lambda x: lax.psum(jnp.where(index == n - 1, x, jnp.zeros_like(x)), AXIS), after)
        return y, last

    split = _in_parts(part, (False, False, True, True, False, False), (True, False))
    return split(run, factor, tokens, segment_ids, initial, empty)


def whole_sequences(function: Callable[..., Array], *timed: Array, taps: Array) -> Array:
    """`function(*timed, taps)`, where each device has whole sequences of a share of the channels.

    Activations are exchanged before and after (all-to-all). Channels are padded to a multiple of the devices.

    Args:
      function: its output is `(b, t, d, ...)`.
      timed: arrays `(b, t, d, ...)`.
      taps: filters `(w, d)`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    d = taps.shape[1]
    missing = -d % math.prod(mesh.shape.get(name, 1) for name in RULES["channels_of_sequences"])
    filled = lambda x, axis: jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])  # noqa: E731
    placed = lambda x, *axes: constrain(x, *axes, *(None,) * (x.ndim - len(axes)))  # noqa: E731
    # Padded before the exchange: otherwise the compiler would exchange channels that the devices do not divide.
    timed = tuple(placed(filled(x, 2), "batch", "time", "channels") for x in timed)
    timed = tuple(placed(x, "batch", None, "channels_of_sequences") for x in timed)
    y = function(*timed, placed(filled(taps, 1), None, "channels_of_sequences"))
    y = placed(placed(y, "batch", None, "channels_of_sequences"), "batch", "time", "channels")
    return placed(y[:, :, :d], "batch", "time", "channels")


def _in_parts(part: Callable, given: tuple[bool, ...], returned: Any) -> Callable:
    """`part` on the tokens of each device; True: an argument, or result, has a time axis after the batch."""
    spec = lambda timed: PartitionSpec(None, AXIS) if timed else PartitionSpec()  # noqa: E731
    return jax.shard_map(
        part,
        in_specs=tuple(map(spec, given)),
        out_specs=jax.tree.map(spec, returned),
        axis_names={AXIS},
        check_vma=False,
    )


def _prefix(element: tuple[Array, State], initial: State, empty: State, composition: Composition) -> State:
    """The state before this part, given F and U of each part."""
    n = lax.axis_size(AXIS)

    def earlier(element: tuple, distance: int) -> tuple:
        """The element of the part `distance` before; if there is none, the identity."""
        nothing = jnp.full_like(element[0], composition.keeps), empty
        return jax.tree.map(lambda x, fill: _from_before(x, fill, distance), element, nothing)

    before = earlier(element, 1)
    distance = 1
    while distance < n - 1:
        first = earlier(before, distance)
        before = composition.both(first[0], before[0]), composition.after(before[0], first[1], before[1])
        distance *= 2
    return composition.after(before[0], initial, before[1])


def _from_before(x: Array, fill: Array, distance: int) -> Array:
    """`x` of the part `distance` before this one, `fill` where there is none."""
    pairs = [(i, i + distance) for i in range(lax.axis_size(AXIS) - distance)]
    return jnp.where(lax.axis_index(AXIS) >= distance, lax.ppermute(x, AXIS, pairs), fill)


def _wide(x: Array, ndim: int) -> Array:
    return x.reshape(*x.shape, *[1] * (ndim - x.ndim))
