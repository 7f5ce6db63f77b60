"""Packed documents: every document as if it were alone, forward and backward, and what refuses `segment_ids`.

Alone: documents are the rows of a batch, behind each of which zeros follow, that no token of it sees.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.taylor_attention import (
    TaylorState,
    empty_state,
    reference,
    sharded_taylor_attention,
    taylor_attention as attention,
)
from pallas_kernels.taylor_attention.problem import Problem
from tests.pallas_kernels.shared import (
    MARKERS,
    PLATFORMS,
    assert_close,
    full,
    lowered,
    make_mesh,
)
from tests.pallas_kernels.taylor_attention.cases import Call, truth

LENGTHS = ([1, 7, 8, 5, 1, 15], [20, 3, 14])
"""Of the documents of two rows. In chunks of 8: a chunk of its own, borders on edges and between them, two borders
in a chunk, a whole chunk inside a document, and a shorter chunk at the end."""
IDS = np.stack([np.repeat([4, 9, 4, 2, 9, 4], LENGTHS[0]), np.repeat([3, 0, 3], LENGTHS[1])]).astype(np.int32)
"""Ids return, as new documents."""
T = IDS.shape[1]
GRID = {
    "decay_grouped": Call(t=T, b=2, h=4, g=2, decay=True, eps=0.3, state=False),
    "raw": Call(t=T, b=2, h=3, g=1, normalize=False, scale=0.8, state=False),
}


def documents():
    """(row, first token, length) of every document."""
    for row, lengths in enumerate(LENGTHS):
        yield from zip([row] * len(lengths), np.cumsum([0, *lengths]), lengths, strict=False)


def alone(call, arrays, dy):
    """[y, dq, dk, dv] in float64, a document a row."""
    longest = max(length for _, _, length in documents())

    def unpack(x):
        rows = [np.pad(x[r, i : i + n], ((0, longest - n), (0, 0), (0, 0))) for r, i, n in documents()]
        return np.stack(rows)

    def pack(x):
        return np.concatenate([x[i, :n] for i, (_, _, n) in enumerate(documents())]).reshape(2, T, *x.shape[2:])

    rows = dataclasses.replace(call, b=sum(map(len, LENGTHS)), t=longest)
    no_cotangents = [np.zeros_like(x) for x in rows.cotangents()[1:]]
    (y, *_), gradients = truth(rows, [unpack(x) for x in arrays], [unpack(dy), *no_cotangents])
    return [pack(x) for x in (y, *gradients)]


@functools.cache
def expected(setting):
    call = GRID[setting]
    return alone(call, call.arrays(), call.cotangents()[0])


def packed(attend, call, arrays, dy):
    """[y, dq, dk, dv] of one call with segment_ids."""
    decay = None if call.rates is None else jnp.asarray(call.rates)

    @jax.jit
    def run(arrays, dy):
        ids = jnp.asarray(IDS)
        y, pull_back = jax.vjp(lambda *x: attend(*x, segment_ids=ids, decay=decay, **call.options), *arrays)
        return [y, *pull_back(dy)]

    return run(arrays, dy)


def inputs(call, dtype=jnp.float32):
    return [jnp.asarray(x, dtype) for x in call.arrays()], jnp.asarray(call.cotangents()[0], dtype)


@pytest.mark.parametrize(
    ("setting", "chunk_size", "platform"),
    [
        ("decay_grouped", 8, "cpu"),
        ("decay_grouped", 8, "cuda"),
        full("decay_grouped", 1, "cpu"),
        full("decay_grouped", None, "cpu"),
        full("raw", 8, "cpu"),
    ],
)
def test_packed_equals_alone(setting, chunk_size, platform):
    """Kills weights between documents, a state that is read, written or kept across a border, each forward or
    backward, a border one token off, and ids that are taken for one document when they return. For an accelerator all
    chunks at once."""
    call = GRID[setting]
    with lowering_for(platform):
        y, *gradients = packed(
            functools.partial(attention, chunk_size=chunk_size, implementation="xla"), call, *inputs(call)
        )
    assert_close(y, expected(setting)[0], 1e-5)
    assert_close(gradients, expected(setting)[1:], 1e-4)


@pytest.mark.parametrize("setting", ["decay_grouped", full("raw")])
def test_reference_equals_alone(setting):
    """Kills a truth that is wrong about documents itself, in float64."""
    call = GRID[setting]
    with jax.enable_x64(True):
        run = functools.partial(attention, implementation="reference")
        results = packed(run, call, *inputs(call, jnp.float64))
    assert_close(results, expected(setting), 1e-13)


@pytest.mark.full
def test_reference_equals_recurrence():
    """Kills states of the reference that hold more than the last document, or an initial state that reaches a
    second one; row 2 is one document, which keeps it."""
    call = Call(t=T, b=3, h=4, g=2, decay=True, eps=0.1)
    ids = jnp.asarray([*IDS, np.full(T, 7)], jnp.int32)
    with jax.enable_x64(True):
        q, k, v, s, z = (jnp.asarray(x) for x in call.arrays())
        options = {"scale": 0.7, "eps": 0.1, "normalize": True, "decay": call.rates, "segment_ids": ids}
        state = TaylorState(s, z)
        runs = [
            jax.jit(functools.partial(run, initial_state=state, **options))(q, k, v)
            for run in (reference.quadratic, reference.recurrence)
        ]
    assert_close(runs[0], runs[1], 1e-13)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_kernel_is_chosen(platform):
    """Kills a kernel that is chosen and ignores documents; without ids the same call has one."""
    arrays = jax.eval_shape(Problem(b=1, t=128, h=2, k=16, v=64).inputs)
    ids = jax.ShapeDtypeStruct((1, 128), jnp.int32)

    def loss(*x):
        return attention(*x[:3], segment_ids=x[3] if len(x) > 3 else None).astype(jnp.float32).sum()

    assert MARKERS[platform] in lowered(loss, arrays, platform)
    assert MARKERS[platform] not in lowered(jax.grad(loss, (0, 1, 2)), (*arrays, ids), platform)
    name = {"tpu": "mosaic_tpu", "cuda": "mosaic_gpu"}[platform]
    with pytest.raises(NotImplementedError, match=f"^{name}: segment_ids are served by xla alone; use impl"):
        attention(*arrays, segment_ids=ids, implementation=name)


def test_errors():
    """Kills ids that are broadcast or rounded, and a state that mixes documents."""
    q, k, v = (np.zeros((2, 3, 4, d), np.float32) for d in (3, 3, 5))
    ids, state = np.zeros((2, 3), np.int32), jax.eval_shape(lambda: empty_state(2, 4, 3, 5))
    for options, message in [
        ({"segment_ids": ids[:, :2]}, r"segment_ids int32\[2, 2\] must be int32\[2, 3\], one for each token"),
        ({"segment_ids": ids.astype(np.float32)}, r"segment_ids float32\[2, 3\] must be int32\[2, 3\]"),
        ({"segment_ids": ids, "return_state": True}, "prefill one document at a time"),
        (
            {"segment_ids": ids, "initial_state": state},
            "segment_ids with a state",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            attention(q, k, v, **options)
        with pytest.raises(ValueError, match=message):
            sharded_taylor_attention(q, k, v, mesh=make_mesh((1,)), **options)
    options = {"mesh": make_mesh((1,)), "sequence_axis": "x", "segment_ids": ids, "implementation": "mosaic_tpu"}
    with pytest.raises(ValueError, match=r"segment_ids with sequence_axis='x' need implementation='xla'"):
        sharded_taylor_attention(q, k, v, **options)
