"""The public functions: which implementation runs where, refusals, transformations, and single steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.sliding_window import (
    SlidingWindowCache,
    empty_cache,
    sliding_window_attention,
    sliding_window_step,
)
from pallas_kernels.sliding_window.api import BACKENDS
from pallas_kernels.sliding_window.problem import Problem
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, assert_close, full, lowered, make_mesh, slow
from tests.pallas_kernels.sliding_window.cases import Call, problem, truth

shape = functools.partial(Problem, window=64)
SERVED = shape(b=2, t=128, h=4, g=2, k=64, v=64)
"""bfloat16, grouped heads: a shape that most kernels take."""
KERNELS = {"cuda": 2, "tpu": 4}
"""Kernels of a forward and a backward pass at SERVED; splash attention's forward pass runs twice."""
WIDE = dataclasses.replace(SERVED, k=128, v=128)
"""Two kernels backward on Hopper."""
TARGETS = [
    *((name, SERVED, KERNELS[name]) for name in PLATFORMS),
    *(full(name, WIDE, 3) for name in PLATFORMS if name == "cuda"),
    ("tpu", dataclasses.replace(SERVED, g=4), 2),
]
"""(platform, shape, kernels of a forward and a backward pass)."""


def to_jax(arrays):
    return [np.asarray(x, np.float32) for x in arrays]


def value(*arrays, window=64, **options):
    return sliding_window_attention(*arrays, window=window, **options).astype(jnp.float32).sum()


def kernels(text, platform):
    return text.count(f"@{MARKERS[platform]}")


@pytest.mark.parametrize(("platform", "served", "count"), TARGETS)
def test_the_platform_of_the_program_chooses(platform, served, count):
    """Kills a choice by the host's backend: from a CPU, H100 and TPU programs hold their kernels, and only those."""
    arrays = jax.eval_shape(served.inputs)
    gradient = jax.grad(value, (0, 1, 2))
    assert kernels(lowered(value, arrays, platform), platform) == 1
    assert kernels(lowered(gradient, arrays, platform), platform) == count
    assert lowered(gradient, arrays, "cpu").count("custom_call @") == 0
    by_name = functools.partial(value, implementation="xla")
    assert kernels(lowered(jax.grad(by_name, (0, 1, 2)), arrays, platform), platform) == 0


@pytest.mark.parametrize(("platform", "served", "count"), TARGETS)
def test_kernels_survive_transformations(platform, served, count):
    """Kills a gradient that leaves its kernel under remat, nested jit and vmap, with a cache in and out."""
    arrays = jax.eval_shape(lambda: [x[None] for x in served.inputs()])

    def loss(*arrays):
        def attend(*x):
            cache = empty_cache(served.b, 64, served.kv_heads, served.k, served.v, jnp.bfloat16)
            y, cache = sliding_window_attention(*x, window=64, initial_cache=cache, return_cache=True)
            return y.astype(jnp.float32).sum() + cache.k.astype(jnp.float32).sum()

        return jax.vmap(jax.checkpoint(jax.jit(attend)))(*arrays).sum()

    assert kernels(lowered(jax.grad(loss, (0, 1, 2)), arrays, platform), platform) >= count


REFUSED = [
    ("mosaic_gpu", shape(b=1, t=8, h=2, k=64, v=64, dtype=jnp.float16), "not all bfloat16"),
    ("mosaic_gpu", shape(b=1, t=8, h=2, k=64, v=32), "head_dims 64 of keys and 32 of values are not one"),
    ("splash_tpu", shape(b=1, t=8, h=2, k=64, v=64, dtype=jnp.float16), "dtype float16 is not bfloat16 or"),
    ("splash_tpu", shape(b=1, t=8, h=2, k=64, v=264), "head_dim=264 is more than 256"),
    ("splash_tpu", shape(b=0, t=8, h=2, k=64, v=64), "batch 0 or heads 2 are 0"),
]


def test_named_implementations_never_fall_back():
    """Kills a silent fallback from a name; without one, the same call runs."""
    for implementation, spec, reason in REFUSED:
        if implementation == "mosaic_gpu" and "cuda" not in PLATFORMS:
            continue
        inputs = jax.eval_shape(spec.inputs)
        with pytest.raises(NotImplementedError, match=rf"^{implementation}: .*{reason}.*; use implementation='xla'$"):
            sliding_window_attention(*inputs, window=64, implementation=implementation)
        y = jax.eval_shape(functools.partial(sliding_window_attention, window=64), *inputs)
        assert y.shape == (spec.b, spec.t, spec.h, spec.v)


def test_kernels_refuse_a_mesh_and_what_lies_before_segments():
    """Kills a kernel that the compiler would have to partition, and one that ignores an operand."""
    arrays = jax.eval_shape(SERVED.inputs)
    with jax.set_mesh(make_mesh((2, 4))):
        with pytest.raises(NotImplementedError, match=r"\('x', 'y'\) are not manual.*call sharded_sliding_window"):
            sliding_window_attention(*arrays, window=64, implementation="splash_tpu")
        assert kernels(lowered(value, arrays, "tpu"), "tpu") == 0
    for name, backend in BACKENDS.items():
        reason = backend.objection(problem(past=8, start=True, segments=True))
        assert (reason is None) == (name == "xla"), (name, reason)
    assert "would take minutes" in BACKENDS["splash_tpu"].objection(problem(t=2**17))


@pytest.mark.parametrize("implementation", ["xla", slow("reference")])
def test_steps(implementation):
    """Kills a step that pairs heads with the wrong keys or misses itself, and a sequence that does not continue where
    the steps stopped; gradients through all of them to the ring before."""
    call = Call(t=9, window=4, b=3, scale=0.8, cache=True)
    positions = np.asarray(call.positions, np.int32)

    @jax.jit
    def run(arrays, cotangents):
        def outputs(q, k, v, *rings):
            cache, ys = SlidingWindowCache(*rings, positions), []
            for i in range(6):
                y, cache = sliding_window_step(cache, q[:, i], k[:, i], v[:, i], scale=0.8)
                ys.append(y)
            rest, cache = sliding_window_attention(
                q[:, 6:], k[:, 6:], v[:, 6:], window=4, scale=0.8, initial_cache=cache, return_cache=True,
                implementation=implementation,
            )  # fmt: skip
            return [jnp.concatenate([jnp.stack(ys, axis=1), rest], axis=1), cache.k, cache.v]

        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    outputs, gradients = run(to_jax(call.arrays()), to_jax(call.cotangents()))
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


def test_no_recompilation():
    """Kills shapes or constants that depend on positions: the second chunk and step reuse the programs of the first."""
    q, k, v = (np.float32(x) for x in Call(t=16, window=5).arrays())
    prefill = jax.jit(functools.partial(sliding_window_attention, window=5, return_cache=True))
    step, cache = jax.jit(sliding_window_step), empty_cache(2, 5, 2, 5, 3)
    for first in (0, 8):
        part = slice(first, first + 7)
        _, cache = prefill(q[:, part], k[:, part], v[:, part], initial_cache=cache)
        _, cache = step(cache, q[:, first + 7], k[:, first + 7], v[:, first + 7])
    assert prefill._cache_size() == step._cache_size() == 1


def test_steps_work_in_place():
    """Kills a step that copies the donated cache: all of it is reused for the result."""
    cache = empty_cache(2, 7, 4, 16, 8)
    q, k, v = (np.ones((2, 4, d), np.float32) for d in (16, 16, 8))
    step = jax.jit(sliding_window_step, donate_argnums=0).lower(cache, q, k, v).compile()
    assert step.memory_analysis().alias_size_in_bytes == sum(x.nbytes for x in cache)


def test_return_cache_without_initial_cache_starts_empty():
    """Kills a first call that drops its keys, or a ring whose order depends on how it was filled."""
    q, k, v = (np.float32(x) for x in Call(t=11, window=4).arrays())
    run = jax.jit(functools.partial(sliding_window_attention, window=4, return_cache=True))
    _, cache = run(q, k, v)
    order = np.array([8, 9, 10, 7])
    assert_close((cache.k, cache.v, cache.position), (k[:, order], v[:, order], np.array([11, 11])), 0)
    _, cache = run(q[:, :3], k[:, :3], v[:, :3])
    assert_close((cache.k[:, :3], cache.v[:, 3], cache.position), (k[:, :3], 0 * v[:, 3], np.array([3, 3])), 0)


def test_errors():
    """Kills silent broadcasting of shapes that do not belong together."""
    q, k, v = (np.float32(x) for x in Call(t=3, window=4).arrays())
    ids = np.zeros((2, 3), np.int32)

    def cache(*sizes):
        return jax.eval_shape(lambda: empty_cache(*sizes))

    for arguments, options, message in [
        ((q, k, v), {"window": 0}, "window=0 must be at least 1"),
        ((q[0], k, v), {}, r"must be \(b, t, heads, width\)"),
        ((q, k[:, :2], v), {}, "must share batch and time"),
        ((q, q[:, :, :3], q[:, :, :3]), {}, "4 query heads must be a multiple of 3 key/value heads"),
        ((q, k.astype(jnp.bfloat16), v), {}, r"\('float32', 'bfloat16', 'float32'\) must be equal; cast them"),
        ((q, k, v), {"initial_cache": cache(2, 5, 2, 5, 3)}, "initial_cache of 5 slots .* for window=4"),
        ((q, k, v), {"initial_cache": cache(1, 4, 2, 5, 3)}, r"must be k=\(2, 4, 2, 5\), v=\(2, 4, 2, 3\)"),
        ((q, k, v), {"segment_ids": ids[:, :2]}, r"int32\[2, 2\] must be int32\[2, 3\]"),
        ((q, k, v), {"segment_ids": ids.astype(jnp.float32)}, r"float32\[2, 3\] must be int32\[2, 3\]"),
        ((q, k, v), {"segment_ids": ids, "return_cache": True}, "prefill one document at a time"),
        ((q, k, v), {"segment_ids": ids, "initial_cache": cache(2, 4, 2, 5, 3)}, "segment_ids with a cache"),
        ((q, k, v), {"implementation": "cuda"}, "implementation='cuda' must be one of"),
    ]:
        with pytest.raises(ValueError, match=f"^sliding_window_attention: .*{message}"):
            sliding_window_attention(*arguments, **{"window": 4, **options})
    with pytest.raises(ValueError, match="3 query heads must be a multiple of 2"):
        sliding_window_step(cache(2, 4, 2, 5, 3), q[:, 0, :3], k[:, 0], v[:, 0])
