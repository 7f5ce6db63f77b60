"""The contract of `jaxzoo.mixers.base`, asked of every registered mixer as far as its capabilities promise.

The truth is `step`, token by token, the simplest of the three forms; each mixer's own tests check it against an
independent reference. States start warm: every row of the batch has seen another number of tokens.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import Context, state_bytes
from tests.mixers.cases import CASES, MAX_LENGTH, TINY, build
from tests.mixers.outside import N_TOKENS

BATCH, LENGTH = 3, 13
WARM = (0, 4, 9)
"""Tokens that each row has seen before the test begins."""

DOCUMENTS = ((1, 5, 2, 5), (13,), (4, 1, 8))
"""Lengths of the documents that are packed into each row."""


def cases(*, variants=True, **promised):
    """Parametrises by the cases whose capabilities are these; those that are no mixer's `tiny()` are slow, or not."""
    chosen = [
        name
        for name, config in CASES.items()
        if all(getattr(config.capabilities, field) == value for field, value in promised.items())
    ]
    slow = [] if variants else [name for name in chosen if name not in TINY]
    return pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in slow)) for c in chosen])


ALL, STREAMING = cases(), cases(streams=True)
ALL_TINY, STREAMING_TINY = cases(variants=False), cases(variants=False, streams=True)


def cuts():
    """Parametrises by cases that stream and places to cut: behind no token, one or all of them, and within chunks."""
    chosen = [name for name, config in CASES.items() if config.capabilities.streams]
    quick = [(name, cut) for name in chosen for cut in ((1, LENGTH) if name in TINY else (1,))]
    slow = [(name, cut) for name in chosen for cut in (0, 1, 4, 5, LENGTH - 1, LENGTH) if (name, cut) not in quick]
    return pytest.mark.parametrize(
        ("case", "cut"), [*quick, *(pytest.param(*each, marks=pytest.mark.slow) for each in slow)]
    )


class Stream(NamedTuple):
    """What is fed: inputs and token ids, as NumPy arrays: each cut of a JAX array would be a program to compile."""

    x: np.ndarray
    tokens: np.ndarray

    def part(self, start=0, stop=None):
        return Stream(self.x[:, start:stop], self.tokens[:, start:stop])

    @property
    def context(self):
        return Context(tokens=jnp.asarray(self.tokens))


@functools.cache
def mixer_of(case):
    with jax.ensure_compile_time_eval():  # perhaps first called while a test is traced
        return build(CASES[case])


def inputs(case, length=LENGTH, seed=2, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, length, CASES[case].d_model)).astype(dtype)
    return Stream(x, rng.integers(N_TOKENS, size=(BATCH, length), dtype=np.int32))


def empty_state(case, batch_size=BATCH, **options):
    return mixer_of(case).init_state(batch_size, capacity=MAX_LENGTH, **options)


@functools.partial(jax.jit, static_argnums=0)
def run_step(case, x_t, tokens, state):
    return mixer_of(case).step(x_t, state, Context(tokens=tokens))


def run_steps(case, stream, state):
    """One program for all lengths."""
    y = [stream.x[:, :0]]
    for i in range(stream.x.shape[1]):
        y_t, state = run_step(case, stream.x[:, i], stream.tokens[:, i], state)
        y.append(np.asarray(y_t)[:, None])
    return np.concatenate(y, axis=1), state


@functools.partial(jax.jit, static_argnums=0)
def run_prefill(case, stream, state):
    return mixer_of(case).prefill(stream.x, state, stream.context)


@functools.partial(jax.jit, static_argnums=0)
def run_all(case, stream):
    return mixer_of(case)(stream.x, stream.context)


@functools.cache
def warm_state(case):
    """Row i has seen `WARM[i]` tokens, by `step` alone."""
    history = inputs(case, max(WARM), seed=3)
    states = [run_steps(case, history.part(0, seen), empty_state(case))[1] for seen in WARM]
    return jax.tree.map(lambda *leaves: jnp.asarray([np.asarray(leaf)[i] for i, leaf in enumerate(leaves)]), *states)


def assert_close(actual, expected, tolerance=1e-5):
    """Every leaf within `tolerance` of the largest entry of its expectation (at least 1)."""
    jax.tree.map(functools.partial(_assert_leaf_close, tolerance), actual, expected)


def _assert_leaf_close(tolerance, actual, expected):
    scale = max(1.0, float(np.abs(np.asarray(expected, np.float64)).max(initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


@cuts()
def test_prefill_then_step_equals_steps(case, cut):
    """Kills a wrong mask, chunk carry, decay, padding that enters a state, a ring that wraps wrongly."""
    stream, tolerance = inputs(case), CASES[case].capabilities.prefill_tolerance
    expected_y, expected_state = run_steps(case, stream, warm_state(case))
    y_head, state = run_prefill(case, stream.part(0, cut), warm_state(case))
    y_tail, stepped = run_steps(case, stream.part(cut), state)
    assert_close(np.concatenate([y_head, y_tail], axis=1), expected_y, tolerance)
    assert_close(stepped, expected_state, tolerance)
    y_tail, prefilled = run_prefill(case, stream.part(cut), state)
    assert_close(np.concatenate([y_head, y_tail], axis=1), expected_y, tolerance)
    assert_close(prefilled, expected_state, tolerance)


@STREAMING
def test_call_equals_steps_from_init_state(case):
    """Kills a training form that disagrees with the streaming forms."""
    expected, _ = run_steps(case, inputs(case), empty_state(case))
    assert_close(run_all(case, inputs(case)), expected, CASES[case].capabilities.prefill_tolerance)


@ALL_TINY
def test_causality_by_jacobian(case):
    """Kills a look at the future (exactly 0, but for the rounding of a Fourier transform), a dead past, and a
    promise to see the future that is not kept. A selection by the future has no derivative: it shows by a change."""
    stream, promised = inputs(case, 9), CASES[case].capabilities
    mixer, context = mixer_of(case), stream._replace(tokens=stream.tokens[:1]).context
    run = jax.jit(lambda x: mixer(x[None], context)[0])
    strength = np.abs(np.asarray(jax.jacobian(run)(stream.x[0]))).max(axis=(1, 3))
    future = np.triu(strength, 1).max()
    if promised.causal:
        assert future <= promised.future_rounding * strength.max()
    else:
        others = np.stack([[*stream.x[0, :5], *inputs(case, 4, seed=seed).x[0]] for seed in range(20, 28)])
        assert np.abs(np.asarray(jax.vmap(run)(others)) - np.asarray(run(stream.x[0])))[:, :5].max() > 1e-4
    mixed = np.tril(strength, -1).any(axis=1) if promised.selects else np.ones(9, bool)
    assert mixed[1:].any()
    assert np.diagonal(strength)[mixed].min() > 1e-4
    assert np.diagonal(strength, -1)[mixed[1:]].min() > 1e-4


def documents():
    """(row, start, stop) of every document."""
    ends = [np.cumsum(lengths) for lengths in DOCUMENTS]
    return [
        (row, int(end - n), int(end))
        for row, lengths in enumerate(DOCUMENTS)
        for n, end in zip(lengths, ends[row], strict=True)
    ]


def segment_ids():
    """Ids by row: neighbours differ, and neither start at 0 nor rise by 1."""
    rows = [np.repeat(7 - 3 * np.arange(len(lengths)), lengths) for lengths in DOCUMENTS]
    return jnp.asarray(np.stack(rows), jnp.int32)


def packed_and_alone(case):
    """Parameters, and two functions of parameters and inputs: the documents in one row, and each at the start of a row
    of its own."""
    graph, params, others = nnx.split(mixer_of(case), nnx.Param, ...)
    stream = inputs(case)
    rows, starts, stops = map(np.array, zip(*documents(), strict=True))
    at = starts[:, None] + np.arange(LENGTH)[None]
    own, at = at < stops[:, None], np.minimum(at, LENGTH - 1)

    def packed(params, x):
        context = dataclasses.replace(stream.context, segment_ids=segment_ids())
        return nnx.merge(graph, params, others)(x, context)

    def alone(params, x):
        context = stream._replace(tokens=stream.tokens[rows[:, None], at]).context
        y = nnx.merge(graph, params, others)(x[rows[:, None], at], context)
        return jnp.zeros_like(x).at[rows[:, None], at].add(jnp.where(own[..., None], y, 0))

    return params, packed, alone


@cases(segments=True, causal=True)
def test_packed_documents_equal_the_documents_alone(case):
    """Kills a leak from one document into the next, in a filter, a window, a state, a denominator or a position."""
    params, packed, alone = packed_and_alone(case)
    stream = inputs(case)
    y, expected = (jax.jit(function)(params, stream.x) for function in (packed, alone))
    assert_close(y, expected)
    assert np.abs(run_all(case, stream) - np.asarray(y)).max() > 1e-3, "the documents do differ from one long one"


@cases(variants=False, segments=True, causal=True)
def test_gradients_of_packed_documents_equal_those_of_the_documents_alone(case):
    """Kills the same leak on the way back, to inputs and parameters."""
    params, *both = packed_and_alone(case)
    stream, cotangent = inputs(case), inputs(case, seed=4).x

    def gradients(function):
        return jax.jit(lambda params, x: jax.vjp(function, params, x)[1](cotangent))(params, stream.x)

    found, expected = map(gradients, both)
    assert_close(found, expected, 1e-4)


@cases(segments=False)
def test_packed_documents_are_refused_by_name(case):
    """Kills a mixer that lets documents leak into each other and says nothing."""
    stream = inputs(case)
    name = type(mixer_of(case)).__name__
    for run in (mixer_of(case), mixer_of(case).with_losses):
        with pytest.raises(ValueError, match=f"^{name} does not honour segment_ids"):
            run(jnp.asarray(stream.x), dataclasses.replace(stream.context, segment_ids=segment_ids()))


@STREAMING
def test_a_stream_holds_one_document(case):
    """Kills segment ids that prefill and step ignore: a new document starts from a fresh state."""
    x, tokens = map(jnp.asarray, inputs(case))
    name = type(mixer_of(case)).__name__
    all_at_once = Context(tokens=tokens, segment_ids=segment_ids())
    one = Context(tokens=tokens[:, 0], segment_ids=segment_ids()[:, 0])
    with pytest.raises(ValueError, match=f"^{name} got segment_ids with a state"):
        mixer_of(case).prefill(x, empty_state(case), all_at_once)
    with pytest.raises(ValueError, match=f"^{name} got segment_ids with a state"):
        mixer_of(case).step(x[:, 0], empty_state(case), one)


@cases(needs_tokens=True)
def test_missing_tokens_are_refused_by_name(case):
    """Kills an error from deep inside a mixer that nobody gave the token ids."""
    with pytest.raises(ValueError, match=f"^{type(mixer_of(case)).__name__} reads token ids, and got none"):
        mixer_of(case)(jnp.asarray(inputs(case).x))


@cases(variants=False, growing_state=True)
def test_a_capacity_sizes_the_state_and_nothing_else(case):
    """Kills outputs that depend on the capacity, a full state that is not exact, and a capacity that is ignored."""
    stream, mixer = inputs(case), mixer_of(case)
    expected, _ = run_steps(case, stream, empty_state(case))
    for capacity in (LENGTH, LENGTH + 1):
        y, state = run_prefill(case, stream.part(0, 7), mixer.init_state(BATCH, capacity=capacity))
        y_tail, _ = run_steps(case, stream.part(7), state)
        assert_close(np.concatenate([y, y_tail], axis=1), expected)
    assert state_bytes(mixer, capacity=2 * LENGTH) > 1.5 * state_bytes(mixer, capacity=LENGTH)
    with pytest.raises(ValueError, match="capacity=None must be positive"):
        mixer.init_state(1)


@cases(streams=True, growing_state=False)
def test_a_fixed_state_needs_no_capacity(case):
    """Kills a state that grows with the capacity and does not say so."""
    assert state_bytes(mixer_of(case)) == state_bytes(mixer_of(case), capacity=1000)


@STREAMING_TINY
def test_state_keeps_structure_and_dtype(case):
    """Kills a state that `lax.scan` refuses, or that drifts to another dtype under bfloat16 activations."""
    mixer = mixer_of(case)

    def prefill_then_scan(x, tokens, state):
        _, state = mixer.prefill(x, state, Context(tokens=tokens))

        def step(state, now):
            y_t, state = mixer.step(now[0], state, Context(tokens=now[1]))
            return state, y_t

        return state, jax.lax.scan(step, state, (x.swapaxes(0, 1), tokens.swapaxes(0, 1)))[0]

    for dtype in (jnp.float32, jnp.bfloat16):
        state = empty_state(case, dtype=dtype)
        for after in jax.eval_shape(prefill_then_scan, *inputs(case, 3, dtype=dtype), state):
            assert jax.tree.structure(after) == jax.tree.structure(state)
            assert [leaf.dtype for leaf in after] == [leaf.dtype for leaf in state]
            assert [leaf.shape for leaf in after] == [leaf.shape for leaf in state]
        assert all(leaf.shape[0] == BATCH for leaf in state)


@STREAMING_TINY
def test_second_call_does_not_recompile(case):
    """Kills weak types and Python numbers that leak into a state."""
    mixer, traces = mixer_of(case), []

    @jax.jit
    def step(x_t, tokens, state):
        traces.append("step")
        return mixer.step(x_t, state, Context(tokens=tokens))

    @jax.jit
    def prefill(stream, state):
        traces.append("prefill")
        return mixer.prefill(stream.x, state, stream.context)

    stream, state = inputs(case), empty_state(case)
    for _ in range(2):
        _, state = prefill(stream.part(0, 3), state)
        _, state = step(stream.x[:, 3], stream.tokens[:, 3], state)
    assert traces == ["prefill", "step"]


@ALL_TINY
def test_jit_equals_eager(case):
    """Kills a branch on a traced value, and numbers that depend on how the program is built."""
    stream, mixer = inputs(case), mixer_of(case)
    assert_close(run_all(case, stream), mixer(jnp.asarray(stream.x), stream.context), 1e-6)


@pytest.mark.slow
@STREAMING
def test_jitted_prefill_equals_eager_prefill(case):
    """Kills the same behind a state; eager, every operation is a program of its own to compile."""
    stream = inputs(case)
    eager = mixer_of(case).prefill(jnp.asarray(stream.x), warm_state(case), stream.context)
    assert_close(run_prefill(case, stream, warm_state(case)), eager, 1e-6)


@ALL
def test_every_parameter_learns(case):
    """Kills a parameter that nothing reads, and a gradient that is not finite."""
    graph, params, others = nnx.split(mixer_of(case), nnx.Param, ...)
    stream, cotangent = inputs(case), inputs(case, seed=4).x

    def loss(params):
        y, losses = nnx.merge(graph, params, others).with_losses(jnp.asarray(stream.x), stream.context)
        return jnp.vdot(y, cotangent) + sum(losses.values(), jnp.zeros(()))

    for path, leaf in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-4, path


@ALL_TINY
def test_with_losses_gives_the_output_and_the_terms_that_the_config_names(case):
    """Kills a training output of its own, a term without a weight, a weight without a term, an array for a scalar."""
    stream, mixer = inputs(case), mixer_of(case)
    y, losses = jax.jit(mixer.with_losses)(stream.x, stream.context)
    assert_close(y, run_all(case, stream), 1e-6)
    assert losses.keys() == CASES[case].loss_weights.keys()
    for loss in losses.values():
        assert (loss.shape, loss.dtype) == ((), jnp.float32)
        assert np.isfinite(loss)


@STREAMING_TINY
def test_gradients_cross_the_cut(case):
    """Kills a state that stops gradients, or carries wrong ones: two chunks must give one pass's gradient."""
    stream, mixer, cotangent = inputs(case), mixer_of(case), inputs(case, seed=4).x

    def cut_in_two(x):
        head, tail = Stream(x, stream.tokens).part(0, 6), Stream(x, stream.tokens).part(6)
        y_head, state = mixer.prefill(head.x, empty_state(case), head.context)
        y_tail, _ = mixer.prefill(tail.x, state, tail.context)
        return jnp.vdot(jnp.concatenate([y_head, y_tail], axis=1), cotangent)

    expected = jax.jit(jax.grad(lambda x: jnp.vdot(mixer(x, stream.context), cotangent)))(stream.x)
    assert_close(jax.jit(jax.grad(cut_in_two))(stream.x), expected, 1e-4)


@ALL_TINY
def test_rows_are_independent(case):
    """Kills a mix-up of batch and time or heads: another row 0 must leave rows 1 and 2 as they were."""
    stream = inputs(case)
    other = stream._replace(x=np.concatenate([inputs(case, seed=5).x[:1], stream.x[1:]]))
    y, y_other = (np.asarray(run_all(case, each)) for each in (stream, other))
    np.testing.assert_array_equal(y[1:], y_other[1:])
    assert np.abs(y[0] - y_other[0]).max() > 1e-3
    if CASES[case].capabilities.streams:
        before, after = (run_prefill(case, each, warm_state(case)) for each in (stream, other))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a)[1:], np.asarray(b)[1:]), before, after)


@ALL_TINY
def test_bfloat16_stays_close(case):
    """Kills sums in bfloat16: the relative L2 error stays within 3 % (three roundings of 2^-8 a layer, the largest
    seen over all cases about 1.2 %), and the output has the dtype of the input."""
    stream = inputs(case)
    expected = np.asarray(run_all(case, stream))
    y = run_all(case, stream._replace(x=stream.x.astype(jnp.bfloat16)))
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float32) - expected) <= 0.03 * np.linalg.norm(expected)


@STREAMING
def test_state_bytes_are_those_of_the_arrays(case):
    """Kills a size by formula."""
    state = empty_state(case, batch_size=2)
    assert state_bytes(mixer_of(case), 2, capacity=MAX_LENGTH) == sum(np.asarray(leaf).nbytes for leaf in state)
