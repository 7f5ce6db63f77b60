"""Decode steps by XLA and by interpreted kernels against float64, the choice between them, and states in place.

Kills: a feature that is missing or counted twice; a state that decays after the token; a slot that is read before or
after its time; heads of another group; taps in the other order; a history that is not gated.
"""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import certificates, triton_packages
from pallas_kernels.decode_step import conv_step, reference, taylor_step, window_step
from pallas_kernels.decode_step.workloads import CASES, GROUPS, ConvStepCase, StepCase, TaylorStepCase, WindowStepCase
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.sliding_window import SlidingWindowCache, empty_cache
from pallas_kernels.taylor_attention import TaylorState, empty_state, taylor_attention_step
from tests.pallas_kernels.shared import assert_close, lowered, slow
from tests.pallas_kernels.triton_cases import check_interpreted

SMALL = [
    dataclasses.replace(case, dtype="float32", **({"cache_dtype": "float32"} if hasattr(case, "cache_dtype") else {}))
    for case in CASES["gpu"]
    if case.b < 100
]
ONE_OF_EACH = [
    TaylorStepCase(implementation="triton", backward=False, b=2, h=4, g=2, k=3, v=5, decay=True, dtype="float32"),
    WindowStepCase(
        implementation="triton", backward=False, b=5, h=4, g=2, k=6, v=5, window=5, dtype="float32",
        cache_dtype="float32",
    ),
    ConvStepCase(implementation="triton", backward=False, b=2, d=9, w=4, gates=2, bias=True, dtype="float32"),
]  # fmt: skip


def test_reference_by_hand():
    """Kills: a decay after the token, a halved product of different entries, slots in another order, turned taps."""
    one = jnp.ones((1, 1, 1))
    s, z = jnp.float32([[[[10], [20], [30]]]]), jnp.float32([[[1, 2, 3]]])
    options = ONE_OF_EACH[0].step_options._replace(scale=1.0, eps=0.0)
    y, s, z = reference.taylor(2 * one, 3 * one, 5 * one, s, z, jnp.float32([0.5]), options)
    np.testing.assert_allclose(np.ravel(s), [5 + 5, 10 + 15, 15 + 45])
    np.testing.assert_allclose(np.ravel(z), [1.5, 4, 10.5])
    np.testing.assert_allclose(np.ravel(y), [(10 + 2 * 25 + 2 * 60) / (1.5 + 2 * 4 + 2 * 10.5)], rtol=1e-6)
    ring = jnp.float32([100, 3, 100]).reshape(1, 3, 1, 1)
    y, keys, _ = reference.window(
        0 * one, one, 5 * one, ring, ring, jnp.int32([5]), ONE_OF_EACH[1].step_options
    )  # fmt: skip
    np.testing.assert_allclose(np.ravel(y), [(100 + 3 + 5) / 3], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(keys), [100, 3, 1])
    y, _, _ = reference.window(0 * one, one, 5 * one, ring, ring, jnp.int32([0]), ONE_OF_EACH[1].step_options)
    np.testing.assert_allclose(np.ravel(y), [5], rtol=1e-6)
    x, taps, before = jnp.float32([[2]]), jnp.float32([[7], [11], [13]]), jnp.float32([[[3], [5]]])
    y, history = reference.conv(x, taps, None, x, None, before, ONE_OF_EACH[2].step_options._replace(n_plain=1))
    np.testing.assert_allclose(np.ravel(y), [4 * 7 + 5 * 11 + 3 * 13])
    np.testing.assert_allclose(np.ravel(history), [5, 4])


@pytest.mark.parametrize("case", ONE_OF_EACH + list(map(slow, SMALL)), ids=lambda case: case.name)
def test_xla_and_gradients(case: StepCase):
    """Gradients of every operand through all outputs, with random cotangents; XLA's serve the kernels too."""
    inputs, rng = case.inputs(3), np.random.default_rng(1)
    backends, options = case.OP.backends, case.step_options
    assert backends["triton"].saved_like is backends["xla"].saved_like
    *outputs, _ = jax.jit(lambda *x: backends["xla"].forward(*x, options=options))(*inputs.operands)
    assert_close(outputs, case.truth(inputs), 1e-5)
    cotangents = tuple(rng.standard_normal(x.shape).astype(np.float32) for x in outputs)
    found = jax.jit(lambda *x: backends["triton"].backward(*x, options=options))(*inputs.operands, None, *cotangents)
    exact = dataclasses.replace(case, backward=True)
    free = [x for x, name in zip(inputs.operands, case.OP.operands, strict=True) if name not in case.OP.fixed]
    with jax.enable_x64(True):
        whole = [x if x is None or x.dtype == np.int32 else np.asarray(x, np.float64) for x in inputs.operands]
        wide, rest = whole[: len(free)], whole[len(free) :]
        pull_back = jax.vjp(lambda *x: tuple(exact.reference(*x, *rest)), *wide)[1]
        expected = pull_back(tuple(x.astype(np.float64) for x in cotangents))
    assert_close(found, expected, 1e-4)


def program(workload, platform="cuda", setting="all"):
    """The program of a step for an absent device, with a donated state."""
    with lowering_for(platform), certificates.using(setting):
        traced = jax.jit(workload.build(None), donate_argnums=0).trace(*workload.abstract_inputs())
        return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.skipif(triton_packages.missing() is not None, reason="needs the extra triton")
def test_kernels_are_chosen_and_states_stay_in_place():
    """Kills: kernels that nobody has verified, a second kernel, a state that is copied by the launch."""
    for workload, updated in zip(GROUPS["step"], (2, 2, 2, 1), strict=True):
        text = program(workload)
        assert text.count("@triton_kernel_call(") == 1
        assert text.count("output_operand_alias<") == updated
        assert "@triton_kernel_call(" not in program(workload, setting="none")
        assert "@triton_kernel_call(" not in program(workload, platform="cpu")


def test_a_cpu_runs_todays_program():
    """Kills a step that differs from the one of before on a CPU."""
    arrays = GROUPS["step"][0].abstract_inputs()
    assert lowered(lambda *x: taylor_step(*x), arrays, "cpu") == lowered(
        lambda *x: taylor_attention_step(*x), arrays, "cpu"
    )


def test_what_steps_refuse():
    """Kills: states of another shape, and a named kernel that another implementation replaces."""
    q, k = jnp.zeros((2, 4, 3)), jnp.zeros((2, 2, 3))
    with pytest.raises(ValueError, match="state of shapes"):
        taylor_step(TaylorState(jnp.zeros((2, 4, 9, 3)), jnp.zeros((2, 4, 9))), q, k, k)
    with pytest.raises(ValueError, match="must be a multiple"):
        window_step(empty_cache(2, 4, 3, 3, 3), q, jnp.zeros((2, 3, 3)), jnp.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="conv_step: initial_state of shape"):
        conv_step(jnp.zeros((2, 3, 5)), jnp.zeros((2, 5)), jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match="conv_step: x and taps"):
        conv_step(jnp.zeros((2, 2, 5)), jnp.zeros((2, 5)), jnp.zeros((3, 4)))
    wide = jnp.zeros((1, 1, 17))
    ring = SlidingWindowCache(*(jnp.zeros((2, 4, 2, 3), jnp.int8),) * 2, jnp.zeros((2,), jnp.int32))
    with pytest.raises(NotImplementedError, match="triton: widths 17 of keys, 3 of values exceed 16, 128"):
        taylor_step(empty_state(1, 1, 17, 3), wide, wide, wide[..., :3], implementation="triton")
    with pytest.raises(NotImplementedError, match="triton: 9 taps are not 2 to 8"):
        conv_step(jnp.zeros((2, 8, 5)), jnp.zeros((2, 5)), jnp.zeros((9, 5)), implementation="triton")
    with pytest.raises(NotImplementedError, match="triton: dtype int8 is not one of"):
        window_step(ring, q, k, k, implementation="triton")


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["taylor_b2_h4", "window7", "conv_b2_d600"])
def test_interpreted_kernels(pattern):
    """Shared heads, rows before and after the first lap of a ring, channels that fill no program."""
    check_interpreted("decode_step", pattern)


@pytest.mark.full
@pytest.mark.skipif(triton_packages.missing() is not None, reason="needs the extra triton")
def test_interpreted_steps_in_sequence():
    """Kills: a program that reads what another one has overwritten, a slot that moves, calls that mix under vmap."""
    command = [sys.executable, "-m", "tests.pallas_kernels.decode_step.triton_process"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == 4
    assert max(errors.values()) < 1e-6, errors
