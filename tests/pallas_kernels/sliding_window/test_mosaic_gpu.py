"""The Hopper kernels of sliding-window attention against a banded softmax in float64: run by Pallas' GPU interpreter,
with `-m gpu` on a device, and compiled for an H100 where the CUDA plugin is installed.

Set NPROC=16 before Python starts: XLA's pool of threads must hold every blocking callback, or the interpreter
deadlocks. wgmma with its A operand in registers has no interpreter: those operands pass through shared memory
here. That path, and speed, need a device.
"""

import functools
import importlib.util
import itertools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.sliding_window import mosaic_gpu, mosaic_gpu_vjp
from pallas_kernels.sliding_window.api import OP
from pallas_kernels.sliding_window.mosaic_gpu_blocks import scratch_of
from pallas_kernels.sliding_window.mosaic_gpu_layout import (
    AUTO,
    SHARED_BYTES,
    BlockWindow,
    Geometry,
    Tuning,
    plan_dkdv,
    plan_dq,
)
from pallas_kernels.sliding_window.mosaic_gpu_single_pass import SinglePass, plan_single_pass, single_pass_scratch
from pallas_kernels.sliding_window.problem import Problem
from tests.pallas_kernels.hopper import compile_for_hopper
from tests.pallas_kernels.shared import full, relative_l2, slow
from tests.pallas_kernels.sliding_window.cases import one_head

interpret_gpu = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call")
interpreted = pytest.mark.skipif(int(os.environ.get("NPROC", "0")) < 16, reason="set NPROC=16: fewer threads deadlock")

# bf16 rounds by up to 2^-9 = 2e-3 (rms 1.1e-3). Values add, in quadrature, the roundings of the probabilities and of
# the result: rms 1.9e-3 measured. Gradients add that of dS, and of y in delta: rms 2.6e-3 measured. lse is float32.
VALUE_BOUND = 3e-3
GRADIENT_BOUND = 4e-3
LSE_BOUND = 2e-6

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)


def visible(b, t, s, window, start, segment_ids):
    """(b, t, s) booleans."""
    query, key = np.arange(t)[:, None] + s - t, np.arange(s)
    seen = np.broadcast_to((key <= query) & (key > query - window), (b, t, s))
    if start is not None:
        seen = seen & (key >= np.asarray(start)[:, None, None])
    if segment_ids is not None:
        seen = seen & (np.asarray(segment_ids)[:, :, None] == np.asarray(segment_ids)[:, None, :])
    return seen


def truth(q, k, v, dy, seen, scale, y=None):
    """y, lse, dq, dk, dv in float64; y: as it was stored and rounded, for dS = P (dP - dy.y), or None."""
    q, k, v, dy = (np.asarray(x, np.float64) for x in (q, k, v, dy))
    y = None if y is None else np.asarray(y, np.float64)
    group = q.shape[2] // k.shape[2]
    outputs = [np.zeros(dy.shape), np.zeros((q.shape[0], q.shape[2], q.shape[1]))]
    gradients = [np.zeros(x.shape) for x in (q, k, v)]
    for b, i in np.ndindex(q.shape[0], q.shape[2]):
        stored, j = None if y is None else y[b, :, i], i // group
        head = one_head(q[b, :, i], k[b, :, j], v[b, :, j], dy[b, :, i], seen[b], scale, stored)
        outputs[0][b, :, i], outputs[1][b, i], gradients[0][b, :, i] = head[:3]
        gradients[1][b, :, j] += head[3]
        gradients[2][b, :, j] += head[4]
    return *outputs, *gradients


def check(
    t,
    window,
    *,
    past=0,
    b=1,
    h=1,
    g: int | None = None,
    d=64,
    start: list[int] | None = None,
    segments=False,
    scale: float | None = None,
    spread=1.0,
    run: int | None = None,
    warpgroups: int | None = 1,
    stored=False,
    interpret: plgpu.InterpretGPUParams | None = INTERPRET,
):
    """Values, lse and all gradients of one case. warpgroups: one keeps the interpreter fast; None is the kernel's
    own. stored: gradients are those of the stored y."""
    rng = np.random.default_rng([t, window, past])
    g, scale = g or h, scale or d**-0.5

    def bf16(*shape, by=1.0):
        return jnp.asarray(by * rng.standard_normal(shape), jnp.bfloat16)

    q, k, v = bf16(b, t, h, d, by=spread), bf16(b, past + t, g, d, by=spread), bf16(b, past + t, g, d)
    dy = bf16(b, t, h, d)
    segment_ids = np.cumsum(rng.random((b, t)) < 0.03, 1).astype(np.int32) if segments else None
    seen = visible(b, t, past + t, window, start, segment_ids)
    first, ids = (None if x is None else jnp.asarray(x, jnp.int32) for x in (start, segment_ids))
    options = {
        "window": window,
        "scale": scale,
        "interpret": interpret,
        "tuning": Tuning(run=run, warpgroups=warpgroups),
    }
    forward, backward = (
        jax.jit(functools.partial(f, **options)) for f in (mosaic_gpu.forward, mosaic_gpu_vjp.backward)
    )
    y, lse = jax.block_until_ready(forward(q, k, v, first, ids))
    no_races(interpret)
    grads = jax.block_until_ready(backward(q, k, v, first, ids, y, lse, dy))
    no_races(interpret)
    true_y, true_lse, *true_grads = truth(q, k, v, dy, seen, scale, y if stored else None)
    assert [x.shape for x in (y, *grads)] == [x.shape for x in (q, q, k, v)]
    assert all(x.dtype == jnp.bfloat16 for x in (y, *grads))
    some = np.repeat(seen.any(-1)[:, None], h, 1)
    assert relative_l2(y, true_y) < VALUE_BOUND
    np.testing.assert_array_equal(np.isfinite(np.asarray(lse)), some)
    lse, true_lse = np.asarray(lse)[some], np.asarray(true_lse)[some]
    assert np.abs(lse - true_lse).max() < LSE_BOUND * max(1, np.abs(true_lse).max())
    for name, x, true in zip("qkv", grads, true_grads, strict=True):
        if np.abs(true).max() > 1e-9:
            assert relative_l2(x, true) < GRADIENT_BOUND, name
        else:  # the softmax of one score has no slope: dP - P dP is a rounding of float32
            assert np.abs(np.asarray(x, np.float64)).max() < 1e-5, name


def no_races(interpret):
    if interpret is not None:
        assert not interpret_gpu.get_races().races_found


@interpreted
def test_one_kernel_backward():
    """Kills, at once: an edge of the window off by one, an odd tail, segments that meet, a start that is ignored, NaNs
    of queries that see nothing, runs that drop what they send to each other."""
    check(200, 127, segments=True, start=[70], run=3)


@interpreted
def test_two_kernels_backward():
    """Kills the same in dq and in dk and dv: a past that is no whole number of blocks, a query head with a neighbour's
    keys, gradients of keys from one head of the group only, a swizzle that is no divisor of the head dim."""
    check(140, 64, past=63, h=2, g=1, d=96, run=2)


DIMS = ((16, 300), (32, 100), (80, 100), (96, 64), (112, 16), (112, 128), (128, 64), (128, 300))
CASES = {
    "one token": {"t": 1, "window": 16, "run": 3},
    "window of one": {"t": 65, "window": 1, "run": 3},
    "one block": {"t": 64, "window": 64, "run": 3},
    "streamed blocks": {"t": 513, "window": 192, "run": 3},
    "window longer than the sequence": {"t": 200, "window": 300, "run": 3},
    "past": {"t": 100, "window": 64, "past": 63, "run": 2},
    "past longer than the window": {"t": 65, "window": 64, "past": 200, "run": 2},
    "start in the last block": {"t": 64, "window": 16, "b": 1, "start": [63], "run": 2},
    "start after the past": {"t": 200, "window": 300, "past": 299, "b": 2, "start": [200, 310], "run": 2},
    "segments, long window": {"t": 300, "window": 300, "segments": True, "run": 3},
    "grouped heads": {"t": 130, "window": 128, "h": 6, "g": 2, "run": 2},
    "grouped heads, long window": {"t": 130, "window": 300, "h": 4, "g": 2, "run": 2},
    **{f"{d} channels, window of {w}": {"t": 140, "window": w, "d": d, "run": 2} for d, w in DIMS},
    "two warpgroups": {"t": 150, "window": 64, "h": 2, "run": 2, "warpgroups": None},
    "three warpgroups, long window": {"t": 150, "window": 300, "h": 3, "run": 2, "warpgroups": None},
    "two runs": {"t": 128, "window": 64, "run": 2},
    "token after two runs": {"t": 129, "window": 65, "h": 2, "g": 2, "run": 2},
    "token less than two runs": {"t": 127, "window": 3, "h": 2, "g": 2, "run": 2},
    "runs of grouped heads": {"t": 257, "window": 64, "b": 2, "h": 4, "g": 2, "run": 2},
    "negative scale": {"t": 100, "window": 64, "scale": -0.2},
    "large logits": {"t": 200, "window": 64, "spread": 4.0},
    "large logits, streamed": {"t": 200, "window": 192, "spread": 4.0, "stored": True},
}
"""Large logits: |s| up to 60. Streamed, delta is dy.y of the stored y, whose rounding shows."""
FULL = ("past", "two warpgroups", "two runs")


@interpreted
@pytest.mark.parametrize("case", [full(name) if name in FULL else slow(name) for name in CASES])
def test_values_and_gradients(case):
    """Kills: a ring slot read while it is loaded, a row that two tiles claim, past keys met by the wrong queries, NaNs
    of queries that see nothing, keys of a neighbouring head, results stored over operands still in use, barriers of
    another warpgroup, dk and dv without the queries after a run, exponentials before the maximum is known."""
    check(**CASES[case])


@interpreted
@pytest.mark.parametrize(("window", "h", "g"), [slow(64, 1, 1), slow(128, 2, 2), slow(40, 4, 2)])
def test_the_same_bits_for_any_run(window, h, g):
    """Kills: sums in an order that depends on runs, or on which warpgroup is first."""
    rng = np.random.default_rng(window)
    q, k, v, y, dy = (jnp.asarray(rng.standard_normal((1, 130, n, 64)), jnp.bfloat16) for n in (h, g, g, h, h))
    lse = jnp.asarray(rng.random((1, h, 130)), jnp.float32)
    options = {"window": window, "scale": 0.1, "interpret": INTERPRET}
    bits = []
    for run in (1, 2, 3, 3):
        grads = mosaic_gpu_vjp.backward(q, k, v, None, None, y, lse, dy, tuning=Tuning(run=run), **options)
        bits.append([np.asarray(x).view(np.uint16) for x in grads])
        no_races(INTERPRET)
    for found in bits[1:]:
        for x, first in zip(found, bits[0], strict=True):
            np.testing.assert_array_equal(x, first)


PLANS = {
    "forward": (mosaic_gpu.plan_forward, 1, 1, {"k": None, "v": None}, ()),
    "dq": (plan_dq, 2, 1, {"k": None, "v": None}, ("lse", "delta")),
    "dkdv": (plan_dkdv, 2, 2, {"q": "lse", "dy": "delta"}, ()),
}


def test_every_plan_fits_in_shared_memory():
    """Kills a plan that only fails to launch."""
    for kernel, d in itertools.product(PLANS, range(16, 129, 16)):
        check_plans(*PLANS[kernel], d)


def check_plans(plan, stationary, results, ring, vectors, d):
    for window in (1, 2, 16, *(64 * n + extra for n in range(1, 17) for extra in (0, 1) if 64 * n + extra <= 1024)):
        for g in (16, 4):
            problem = Geometry(4, 8192, 8192, 16, g, d, BlockWindow(window))
            chosen = plan(problem, AUTO)
            sizes = {"stationary": stationary, "results": results, "ring": ring, "vectors": vectors}
            scratch = scratch_of(chosen, d, **sizes, interpret=None)
            arrays = [x for x in scratch.values() if not isinstance(x, plgpu.Barrier)]
            barriers = [x for x in scratch.values() if isinstance(x, plgpu.Barrier)]
            aligned = sum(-(-x.dtype.itemsize * np.prod(x.shape) // 1024) * 1024 for x in arrays)
            assert aligned + 8 * sum(np.prod(x.num_barriers) for x in barriers) <= SHARED_BYTES
            assert chosen.warpgroups >= 2
            assert chosen.slots >= min(2, problem.block_window.blocks)


def fits(scratch):
    """With what Mosaic GPU adds for reductions."""
    arrays = [x for x in scratch.values() if not isinstance(x, plgpu.Barrier)]
    barriers = [x for x in scratch.values() if isinstance(x, plgpu.Barrier)]
    aligned = sum(-(-x.dtype.itemsize * np.prod(x.shape) // 1024) * 1024 for x in arrays)
    return aligned + 8 * sum(np.prod(x.num_barriers) for x in barriers) + 2048 <= SHARED_BYTES


def test_single_pass_fits_in_shared_memory():
    two_ahead = [(16, 2, 16), (16, 128, 16), (64, 2, 16), (64, 65, 4), (64, 66, 16), (64, 128, 16)]
    for d, window, g, ahead in [*((*x, 2) for x in two_ahead), (80, 128, 16, 1), (112, 64, 16, 1)]:
        problem = Geometry(4, 8192, 8192, 16, g, d, BlockWindow(window))
        plan = plan_single_pass(problem, AUTO)
        assert plan is not None
        assert plan.ahead == ahead
        assert fits(single_pass_scratch(problem, plan))


def test_what_two_kernels_serve():
    """Kills: more sums than registers hold; a window of 1, which has no second partner."""
    for d, window, g in [(64, 1, 16), (64, 66, 4), (64, 129, 16), (80, 64, 4), (96, 66, 16), (128, 64, 16)]:
        assert plan_single_pass(Geometry(4, 8192, 8192, 16, g, d, BlockWindow(window)), AUTO) is None


def test_plans_of_the_headline():
    """b 4, h 16, t 8192, d 64: one wave of warpgroups on 132 cores, key blocks loaded once."""
    for window, warpgroups in ((64, 4), (128, 3)):
        problem = Geometry(4, 8192, 8192, 16, 16, 64, BlockWindow(window))
        plan = mosaic_gpu.plan_forward(problem, AUTO)
        assert plan.kept
        assert plan.warpgroups == warpgroups
        assert 4 * plan.tasks(16, 128) <= 132 * warpgroups
        assert plan_single_pass(problem, AUTO) == SinglePass(run=64, ahead=2)


REFUSED = [
    ({"k": 72, "v": 72}, "head_dims 72 of keys"),
    ({"k": 160, "v": 160}, "head_dims 160 of keys"),
    ({"window": 1025}, "window=1025"),
    ({"dtype": jnp.float32}, "float32"),
    ({"segments": True, "past": 8}, "segment_ids with tokens before"),
]


def test_refuses_what_it_cannot_run():
    """Kills a limit of the kernels that the choice does not know."""
    for options, rule in REFUSED:
        problem = Problem(**{"b": 1, "t": 64, "h": 1, "k": 64, "v": 64, "window": 64, **options})
        assert rule in (OP.backends["mosaic_gpu"].objection(problem) or "")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs jax-cuda13-plugin to compile")
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("window", [64, 128])
def test_compiles_without_spills(d, window, capfd, monkeypatch):
    """The headline, b 4, h 16, t 8192: no spills, and no matmul serialised by the assembler."""
    shape = jax.ShapeDtypeStruct
    q, lse = shape((4, 8192, 16, d), jnp.bfloat16), shape((4, 16, 8192), jnp.float32)
    options = {"window": window, "scale": d**-0.5}

    def both(q, k, v, lse, dy):
        y, _ = mosaic_gpu.forward(q, k, v, None, None, **options)
        return y, mosaic_gpu_vjp.backward(q, k, v, None, None, y, lse, dy, **options)

    report = compile_for_hopper(both, q, q, q, lse, q, capfd=capfd, monkeypatch=monkeypatch)
    names = set(re.findall(r"Function properties for sliding_window_(\w+?)_mosaic", report))
    assert names == ({"forward", "backward"} if d == 64 else {"forward", "dq", "dkdv"})
    assert set(re.findall(r"(\d+) bytes spill", report)) == {"0"}
    assert not re.findall(r"C75\d\d", report)
