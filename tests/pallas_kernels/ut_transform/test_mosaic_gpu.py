"""The Hopper kernels, interpreted with races detected, against float64: values and all gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ut_transform import api
from pallas_kernels.ut_transform.problem import Problem
from tests.pallas_kernels.shared import assert_close, full, slow
from tests.pallas_kernels.ut_transform.cases import Call, arrays_of, truth


def measured(call: Call):
    """mix, and of keys read, and of decays write and keep; and the gradients of all arrays."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    arrays, cotangents = arrays_of(call)
    run = api.BACKENDS["mosaic_gpu"]
    assert run.objection(api.problem_of(*arrays, chunk=64)) is None
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    outputs = run.forward(*arrays, chunk=64, interpret=interpret)
    like = jax.eval_shape(lambda *x: api.BACKENDS["xla"].forward(*x, chunk=64), *arrays)
    described = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert described(outputs) == described(like)
    cotangents += [None] * (5 - len(cotangents))
    gradients = run.backward(*arrays, None, *cotangents, chunk=64, interpret=interpret)
    return outputs, [np.asarray(x) for x in gradients if x is not None]


def case(n, **options):
    return Call(n=n, **{"b": 1, "h": 1, "k": 64, "chunk": 64, "dtype": "bfloat16"} | options)


@pytest.mark.parametrize(
    "call",
    [
        case(1, decay="token", kind="documents"),
        case(1, decay="channel", kind="documents"),
        full(case(9, b=2, h=2)),
        full(case(2, decay="channel", kind="strong", h=2)),
        full(case(2, k=128, decay="token", h=2)),
        full(case(1, decay="token", kind="strong")),
        full(case(2, k=0, h=2)),
        full(case(1, k=0, kind="no beta")),
        slow(case(3, k=128, b=2)),
        slow(case(9, k=0, b=2, kind="no beta")),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: a block of the inverse in the wrong place or with the wrong sign; masks of another level; beta of a column
    in place of a row; a tile of another head or chunk; a sum of decays from the wrong end of a chunk; a product that is
    not transposed; a slot that is loaded again too early."""
    found, expected = measured(call), truth(call)
    for x, y in zip(found[0], expected[0], strict=False):
        if x is not None:
            assert_close(x, y, 4e-3)
    assert_close(found[1], expected[1], 8e-3)


@pytest.mark.parametrize("call", [case(1, kind="repeated"), full(case(1, kind="repeated", decay="token"))], ids=str)
def test_repeated_keys(call):
    """Kills: operands of the inverse in one bfloat16 number each (0.1 of mix here), and powers of A, which overflow.

    Gradients are products of rounded inverses, whose terms cancel here.
    """
    found, expected = measured(call), truth(call)
    assert_close(found[0][0], expected[0][0], 4e-3)
    assert_close(found[1], expected[1], 4e-2)


def test_objections():
    objection = api.BACKENDS["mosaic_gpu"].objection
    served: dict[str, Any] = {"b": 1, "t": 128, "h": 2, "k": 64}
    cases = [
        ({"chunk": 32}, "chunks are of 32 tokens, not 64"),
        ({"k": 96}, "key width 96 is not 64 or 128"),
        ({"decay": "channel", "k": 128}, "with decays per channel key width 128 is not 64"),
        ({"dtype": jnp.float32}, "not all bfloat16"),
        ({"h": 0}, "heads 0 are 0"),
    ]
    for options, message in cases:
        assert message in (objection(Problem(**served | options)) or "")
    assert objection(Problem(**served)) is None
