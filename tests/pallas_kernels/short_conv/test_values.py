"""short_conv by XLA, and by interpreted kernels, against float64: values, states, all gradients.

Kills: a tap of another token; a gate on the wrong side of the convolution; a document that sees the one before it; a
history that is read at the wrong place, or whose gradient is lost; channels without a SiLU that get one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import certificates, triton_packages
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.short_conv import reference, short_conv, triton
from pallas_kernels.short_conv.problem import Problem
from pallas_kernels.short_conv.workloads import CASES, ConvCase
from pallas_kernels.verify.case import Variant
from tests.pallas_kernels.shared import assert_close, full, lowered, slow
from tests.pallas_kernels.triton_cases import check_interpreted

OFFSETS = jnp.float32([[1], [3], [2]])
"""Of x, output gate and input gate."""


def test_reference_by_hand():
    """Kills: taps in the other order, gates that change places, a state that is not gated or of another document."""
    x, into, out = (jnp.float32([z])[..., None] for z in ([2, 3, 5], [1, 2, 1], [1, 1, 10]))
    taps, bias, before = jnp.float32([[7], [11]]), jnp.float32([0.5]), jnp.float32([[[13]]])
    given = {"bias": bias, "input_gate": into, "output_gate": out, "initial_state": before}
    y, state = reference.recurrence(x, taps, **given)
    np.testing.assert_allclose(np.ravel(y), [14 + 143 + 0.5, 42 + 22 + 0.5, (35 + 66 + 0.5) * 10])
    np.testing.assert_allclose(np.ravel(state), [5])
    y, _ = reference.recurrence(x, taps, **given, segment_ids=jnp.int32([[4, 4, 9]]))
    np.testing.assert_allclose(np.ravel(y), [157.5, 64.5, 355])
    y, _ = reference.recurrence(x, taps, **given, n_plain=0, segment_ids=jnp.int32([[4, 9, 9]]))
    np.testing.assert_allclose(np.ravel(y), [157.5, 42.5, 1015])
    y, state = reference.recurrence(
        x - 1, taps, **given | {"input_gate": into - 2, "output_gate": out - 3}, offsets=OFFSETS
    )
    np.testing.assert_allclose(np.ravel(y), [157.5, 64.5, (35 + 66 + 0.5) * 10])
    np.testing.assert_allclose(np.ravel(state), [5])
    state = reference.recurrence(x[:, :1], jnp.ones((4, 1)), segment_ids=jnp.int32([[4]]))[1]
    np.testing.assert_allclose(np.ravel(state), [0, 0, 2])


FLOATS = [dataclasses.replace(case, dtype="float32") for case in CASES["gpu"] if case.backward and not case.long]


@pytest.mark.parametrize("case", [*FLOATS[3:5], *map(full, FLOATS[1:3]), *map(slow, FLOATS[5:])], ids=lambda x: x.name)
def test_xla(case: ConvCase):
    operands, (dy,) = inputs = case.inputs(3)
    forward = dataclasses.replace(case, backward=False)
    xla = case.OP.backends["xla"]
    options = case.options(Variant())
    y, _ = jax.jit(lambda *x: xla.forward(*x, **options))(*operands)
    assert_close([y], forward.truth(inputs), 1e-5)
    found = jax.jit(lambda *x: xla.backward(*x, None, dy, **options))(*operands)
    assert_close(found, case.truth(inputs), 1e-4)


def test_sequence_in_two_parts():
    """Kills: a state that is not of the last inputs, not gated, of another document, or shorter than its memory."""
    options = {"dtype": "float32", "documents": True, "shifted": True}
    case = ConvCase(implementation="triton", backward=False, t=9, b=2, gates=2, d=5, **options)
    (x, taps, bias, into, out, history, documents, offsets), _ = case.inputs(0)

    def run(part, state, implementation="xla"):
        return short_conv(
            x[:, part], taps, bias=bias, input_gate=into[:, part], output_gate=out[:, part], n_plain=2,
            offsets=offsets, segment_ids=documents[:, part], initial_state=state, return_state=True,
            implementation=implementation,
        )  # fmt: skip

    y, last = run(slice(0, 9), history)
    assert_close([y, last], run(slice(0, 9), history, "reference"), 1e-6)
    cut = 1 + int(np.flatnonzero(np.diff(documents, axis=1).sum(0) == 0)[1])  # within a document of both rows
    first, state = run(slice(0, cut), history)
    second, end = run(slice(cut, 9), state)
    assert_close([jnp.concatenate([first, second], 1), end], [y, last], 1e-6)
    y, state = run(slice(0, 0), history)
    assert y.shape == (2, 0, 5)
    assert_close(state, history, 0)


@pytest.mark.full
def test_interpreted_kernel():
    """One case with documents, gates, a history and channels that fill no program."""
    check_interpreted("short_conv", "t2_b2")


@pytest.mark.slow
def test_interpreted_kernels():
    check_interpreted("short_conv")


def test_objections(monkeypatch):
    """Kills a kernel that is named and does not run, or that runs where it was not asked for."""
    monkeypatch.setattr(triton_packages.importlib.util, "find_spec", lambda name: True)
    assert triton.objection(Problem(b=1, t=8, d=4, w=4)) is None
    assert "32 bits" in str(triton.objection(Problem(b=1, t=2**20, d=2**11, w=4)))
    x = jnp.zeros((1, 4, 3))
    for taps, match in ((9, "9 taps are not 2 to 8"), (1, "1 taps"), (3, "runs on cuda, and this is compiled for cpu")):
        with pytest.raises(NotImplementedError, match=match):
            short_conv(x, jnp.zeros((taps, 3)), implementation="triton")
    with lowering_for("cuda", capability="8.0"), certificates.using("none"):
        assert "triton" not in lowered(lambda x: short_conv(x, jnp.zeros((3, 3))), [x], "cuda")


def test_errors():
    x, taps = jnp.zeros((1, 3, 4)), jnp.zeros((2, 4))
    for arrays, options, match in [
        ((x, taps[:, :3]), {}, r"\(1, 3, 4\), \(2, 3\) must be \(b, t, d\) and \(w, d\)"),
        ((x, taps), {"output_gate": x[:, :2]}, "output_gate of shape"),
        ((x, taps), {"input_gate": x.astype(jnp.bfloat16)}, "x, input_gate .* must be equal; cast"),
        ((x, taps), {"bias": jnp.zeros(3)}, r"bias of shape \(3,\)"),
        ((x, taps), {"n_plain": 5}, "n_plain=5 must be from 0 to d=4"),
        ((x, taps), {"offsets": taps}, r"offsets of shape \(2, 4\) must be \(3, d\)=\(3, 4\)"),
        ((x, taps), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((x, taps), {"initial_state": x}, r"must be \(b, w - 1, d\)=\(1, 1, 4\)"),
        ((x, taps), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            short_conv(*arrays, **options)
