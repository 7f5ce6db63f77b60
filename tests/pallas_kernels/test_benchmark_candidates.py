"""Candidates of a benchmark compute their op, and truths follow the definitions."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.benchmark import candidates, checks, run
from pallas_kernels.delta_chunks import reference as delta_reference, workloads as delta_workloads
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.gated_linear_attention import reference as gated_reference, workloads as gated_workloads
from pallas_kernels.gated_linear_attention.problem import Problem as GatedProblem
from pallas_kernels.registry import OPS
from pallas_kernels.selective_scan import reference as scan_reference, workloads as scan_workloads
from pallas_kernels.selective_scan.problem import Problem as ScanProblem
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.workloads import WORKLOADS as TAYLOR
from pallas_kernels.workload import in_blocks
from tests.pallas_kernels.shared import full, relative_l2, slow
from tests.pallas_kernels.tiny import TAYLOR as TINY

LONG = Problem(b=2, t=768, h=2, g=1, k=3, v=4, dtype=jnp.float32)


def outputs_and_truth(work, candidate, seed=3):
    inputs = (candidate.inputs or (lambda w, s: w.inputs(s)))(work, seed)
    rows = np.arange(int(work.sizes["b"]))
    actual = [np.asarray(x) for x in jax.tree.leaves(jax.jit(candidate.build(work))(*inputs))]
    return actual, checks.expected(work.truth if candidate.truth is None else candidate.truth(work), inputs, rows)


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        full("naive", "forward_backward", 4),
        *(slow(name, "forward_backward", 4) for name in ("xla", "softmax")),
        *(slow(name, "forward", 1) for name in ("naive", "softmax")),
    ],
)
def test_candidates_pass_their_check(name, kind, count):
    work = TAYLOR.workload("x", TINY["tiny_grouped"], kind)
    candidate = next(c for c in candidates.known("taylor_attention", "cpu") if c.name == name)
    actual, truth = outputs_and_truth(work, candidate)
    found = checks.errors(actual, truth)
    assert checks.objection(found, True, checks.dtypes(work, actual)) is None
    assert len(found) == count


@pytest.mark.full
def test_step_is_checked_with_its_state():
    work = TAYLOR.workload("x", TINY["tiny_grouped"], "step")
    actual, truth = outputs_and_truth(work, candidates.known("taylor_attention", "cpu")[0])
    found = checks.errors(actual, truth)
    assert len(found) == 3
    assert max(found) < 1e-5
    actual[1] = actual[1] + np.float32(0.01)
    assert checks.objection(checks.errors(actual, truth), True, checks.dtypes(work, actual)) is not None


def test_gated_truth_is_the_recurrence(monkeypatch):
    """Kills a state that is lost between the blocks of the truth, in values or gradients: 12 tokens, blocks of 4."""
    monkeypatch.setattr(gated_workloads, "in_blocks", functools.partial(in_blocks, size=4))
    problem = GatedProblem(b=2, t=12, h=2, g=1, k=3, v=4, dtype=jnp.float32)
    work = gated_workloads.WORKLOADS.workload("x", problem, "forward_backward")
    inputs = work.inputs(1)
    found = checks.expected(work.truth, inputs, np.arange(2))

    @jax.jit
    def whole(*inputs):
        y, pull_back = jax.vjp(lambda *x: gated_reference.recurrence(*x)[0], *inputs[:-1])
        return [y, *pull_back(inputs[-1])]

    with jax.enable_x64(True):
        wanted = whole(*(jnp.asarray(np.asarray(x, np.float64)) for x in inputs))
    assert max(relative_l2(x, y) for x, y in zip(found, wanted, strict=True)) < 1e-12


def test_truth_of_the_scan_is_the_recurrence():
    """Kills a state that is lost between the blocks of the truth, or tokens after the last whole one: 130 tokens."""
    problem = ScanProblem(b=2, t=130, d=3, n=2, dtype=jnp.float32)
    work = scan_workloads.WORKLOADS.workload("x", problem, "forward_backward")
    inputs = work.inputs(1)
    found = checks.expected(work.truth, inputs, np.arange(2))

    @jax.jit
    def whole(x, delta, b, c, dy):
        forward = lambda x, delta, b, c: scan_reference.recurrence(x, delta, problem.rates(), b, c)[0]  # noqa: E731
        y, pull_back = jax.vjp(forward, x, delta, b, c)
        return [y, *pull_back(dy)]

    with jax.enable_x64(True):
        wanted = whole(*(jnp.asarray(np.asarray(x, np.float64)) for x in inputs))
    assert max(relative_l2(x, y) for x, y in zip(found, wanted, strict=True)) < 1e-12


@pytest.mark.parametrize("kind", ["forward", full("forward_backward")])
def test_truth_of_the_general_delta_rule_is_its_recurrence(kind):
    """Kills a state that is lost between the blocks of the truth, or tokens after the last whole one: 130 tokens."""
    problem = GeneralProblem(b=2, t=130, h=2, k=3, v=4, dtype=jnp.float32)
    work = delta_workloads.WORKLOADS.workload("x", problem, kind)
    inputs = work.inputs(1)
    found = checks.expected(work.truth, inputs, np.arange(2))
    forward = lambda *x: delta_reference.general_recurrence(*x)[0]  # noqa: E731
    with jax.enable_x64(True):
        arrays = [jnp.asarray(np.asarray(x, np.float64)) for x in inputs]
        y, pull_back = jax.vjp(forward, *arrays[:6])
        wanted = [y, *(pull_back(arrays[6]) if kind == "forward_backward" else ())]
    assert max(relative_l2(x, y) for x, y in zip(found, wanted, strict=True)) < 1e-12


def test_decays_per_channel_are_workloads_of_their_own():
    """Kills shapes of a group that are left out because those of another have the same sizes."""
    names = ("headline", "channel")
    cases = run.cases({name: gated_workloads.GROUPS[name] for name in names}, ("forward", "forward_backward"))
    assert [case.groups for case in cases] == [(name,) for name in names for _ in range(4)]


def test_every_default_name_exists():
    for op in OPS:
        for platform in ("cpu", "gpu", "tpu"):
            names = {c.name for c in candidates.known(op, platform)}
            assert set(candidates.default_names(op, platform)) <= names


@pytest.mark.full
def test_benchmark_imports_without_its_extras():
    """A GPU machine may lack matplotlib, and no machine needs torch, jaxzoo or its dependencies."""
    blocked = ("matplotlib", "torch", "triton", "jaxzoo", "jaxtyping", "tyro", "grain", "flax")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import pallas_kernels.benchmark.__main__"
    subprocess.run([sys.executable, "-c", code], check=True)
