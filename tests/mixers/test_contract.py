"""The contract of `jaxzoo.mixers.base`, asked of every registered mixer as far as its capabilities promise.

The truth is `step`, token by token, the simplest of the three forms; each mixer's own tests check it against an
independent reference. Two programs are compiled for a case, and their results are cached: `streams` runs `step`,
`prefill` and the call, `training` runs the call and its gradients. The tests below read them, one invariant each.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import Context, state_bytes
from tests.mixers.cases import CASES, MAX_LENGTH, SLOW, TINY, build
from tests.mixers.outside import N_TOKENS

BATCH, LENGTH = 3, 13
WARM = (0, 4, 9)
"""Tokens that each row has seen before a stream begins."""
LENGTHS = (0, 1, 4, LENGTH)
"""Tokens of a prefill, from the state after any number of tokens: none, one, a chunk of `tiny()`, and several with a
rest."""
HALF = LENGTH // 2
DOCUMENTS = ((1, 5, 2, 5), (13,), (4, 1, 8))
"""Lengths of the documents that are packed into each row."""


def cases(**promised):
    """Parametrises by the cases with these capabilities; those that are no mixer's `tiny()` are full, or slow."""
    chosen = [
        name
        for name, config in CASES.items()
        if all(getattr(config.capabilities, field) == value for field, value in promised.items())
    ]
    marks = {name: pytest.mark.slow if name in SLOW else pytest.mark.full for name in chosen if name not in TINY}
    return pytest.mark.parametrize(
        "case", [pytest.param(name, marks=[marks[name]] if name in marks else []) for name in chosen]
    )


ALL, STREAMING = cases(), cases(streams=True)


class Stream(NamedTuple):
    """Inputs and token ids, as NumPy arrays: each cut of a JAX array would be a program to compile."""

    x: Any
    tokens: Any

    def at(self, rows, places):
        return Stream(self.x[rows, places], self.tokens[rows, places])

    @property
    def context(self):
        return Context(tokens=jnp.asarray(self.tokens), first_values=jax.lax.stop_gradient(jnp.sin(self.x)))


@functools.cache
def mixer_of(case):
    return build(CASES[case])


def inputs(case, length=LENGTH, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, length, CASES[case].d_model)).astype(np.float32)
    return Stream(x, rng.integers(N_TOKENS, size=(BATCH, length), dtype=np.int32))


def in_turn(mixer, stream, state):
    """Outputs `(b, t, d)` of `step`, and the states before the first and after every token `(t + 1, b, ...)`."""

    def step(state, now):
        y, state = mixer.step(now.x, state, now.context)
        return state, (y, state)

    y, states = jax.lax.scan(step, state, jax.tree.map(lambda x: x.swapaxes(0, 1), stream))[1]
    whole = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), state, states)
    return y.swapaxes(0, 1), whole


def starts(length):
    """(row, place) of every token of every stretch of that length of the streams, which begin at `WARM`."""
    rows, places = np.meshgrid(np.arange(BATCH), np.arange(LENGTH - length + 1), indexing="ij")
    return rows.ravel(), (places + np.array(WARM)[:, None]).ravel()


@functools.cache
def streams(case):
    """Inputs in turn; and from the state after any number of them, the next `LENGTHS` at once."""
    graph, variables = nnx.split(mixer_of(case))

    @jax.jit
    def run(variables, stream):
        mixer = nnx.merge(graph, variables)
        stepped, states = in_turn(mixer, stream, mixer.init_state(BATCH, capacity=MAX_LENGTH))
        prefilled = {}
        for length in LENGTHS:
            rows, places = starts(length)
            part = stream.at(rows[:, None], places[:, None] + np.arange(length)[None])
            prefilled[length] = mixer.prefill(part.x, jax.tree.map(lambda x: x[places, rows], states), part.context)  # noqa: B023
        return {"steps": stepped, "states": states, "prefill": prefilled}

    return jax.tree.map(np.asarray, run(variables, inputs(case, LENGTH + max(WARM))))


def assert_close(actual, expected, tolerance=1e-5, what=""):
    """Every leaf within `tolerance` of the largest entry of its expectation (at least 1)."""

    def leaf(path, actual, expected):
        scale = max(1.0, float(np.abs(np.asarray(expected, np.float64)).max(initial=0)))
        message = f"{what}{jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, err_msg=message)

    jax.tree.map_with_path(leaf, actual, expected)


def assert_state_keeps_structure(case):
    """The state keeps shapes and dtypes under bfloat16 activations, and its size is that of its arrays; only traced."""
    mixer, states = mixer_of(case), streams(case)["states"]
    assert state_bytes(mixer, BATCH, capacity=MAX_LENGTH) == sum(leaf[0].nbytes for leaf in states)
    if not CASES[case].capabilities.growing_state:
        assert state_bytes(mixer) == state_bytes(mixer, capacity=1000)

    def prefill_and_step(state, x, tokens):
        _, prefilled = mixer.prefill(x, state, Context(tokens=tokens, first_values=x))
        return prefilled, mixer.step(x[:, 0], prefilled, Context(tokens=tokens[:, 0], first_values=x[:, 0]))[1]

    tokens = jax.ShapeDtypeStruct((BATCH, 3), jnp.int32)
    for dtype in (jnp.float32, jnp.bfloat16):
        state = jax.eval_shape(lambda: mixer.init_state(BATCH, capacity=MAX_LENGTH, dtype=dtype))  # noqa: B023
        x = jax.ShapeDtypeStruct((BATCH, 3, CASES[case].d_model), dtype)
        for after in jax.eval_shape(prefill_and_step, state, x, tokens):
            assert jax.tree.structure(after) == jax.tree.structure(state)
            for before, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
                assert (leaf.shape, leaf.dtype, leaf.weak_type) == (before.shape, before.dtype, before.weak_type)
                assert leaf.shape[0] == BATCH


@STREAMING
def test_prefill_from_any_state_equals_steps(case):
    """Kills a wrong mask, chunk carry, decay, padding that enters a state, a ring that wraps wrongly; a state that
    drifts to another dtype or weak type, for which the second call would compile again; a size by formula, and a state
    that grows with the capacity and does not say so."""
    assert_state_keeps_structure(case)
    found, tolerance = streams(case), CASES[case].capabilities.prefill_tolerance
    for length in LENGTHS:
        rows, places = starts(length)
        y, state = found["prefill"][length]
        expected = found["steps"][rows[:, None], places[:, None] + np.arange(length)[None]]
        assert_close(y, expected, tolerance, f"outputs of {length} tokens")
        after = jax.tree.map(lambda x: x[places + length, rows], found["states"])  # noqa: B023
        assert_close(state, after, tolerance, f"state after {length} tokens")


def segment_ids():
    """Ids by row: neighbours differ, and neither start at 0 nor rise by 1."""
    rows = [np.repeat(7 - 3 * np.arange(len(lengths)), lengths) for lengths in DOCUMENTS]
    return np.stack(rows).astype(np.int32)


def documents():
    """Rows, first places and places behind the last one of all documents."""
    ends = [np.cumsum(lengths) for lengths in DOCUMENTS]
    rows = np.repeat(np.arange(BATCH), [len(lengths) for lengths in DOCUMENTS])
    stops = np.concatenate(ends)
    return rows, stops - np.concatenate(DOCUMENTS), stops


class Rows(NamedTuple):
    """Rows of the batch of `training`."""

    whole = slice(0, BATCH)
    alone = slice(BATCH, BATCH + sum(map(len, DOCUMENTS)))
    """Each document at the start of a row of its own; something else follows."""
    jacobian = slice(alone.stop, alone.stop + 2 * LENGTH)
    """Sums of neighbours of the first two rows, once for each of their places."""
    futures = slice(jacobian.stop, jacobian.stop + 8)
    """The first 5 tokens of the first row, and other tokens after them."""


def batch(case):
    """The inputs of `training`, and for each of its gradients the cotangents of outputs and losses."""
    stream = inputs(case)
    rows, first, stops = documents()
    places = first[:, None] + np.arange(LENGTH)[None]
    own = places < stops[:, None]
    places = np.minimum(places, LENGTH - 1)
    alone, copies = stream.at(rows[:, None], places), stream.at(np.repeat([0, 1], LENGTH), slice(None))
    copies.x[:, 1:] += copies.x[:, :-1]  # a filter from the inputs' correlations has a tap at distance 1
    others = [inputs(case, seed=seed).at([0], slice(None)) for seed in range(20, 28)]
    futures = jax.tree.map(lambda first, *rest: np.concatenate(rest), stream, *others)
    for all_rows, given in zip(futures, stream, strict=True):
        all_rows[:, :5] = given[:1, :5]
    everything = Stream(*(np.concatenate(parts) for parts in zip(stream, alone, copies, futures, strict=True)))

    cotangent = inputs(case, seed=4).x
    y = {name: np.zeros_like(everything.x) for name in ("alone", "jacobian", "whole", "row", "losses")}
    y["alone"][Rows.alone] = np.where(own[..., None], cotangent[rows[:, None], places], 0)
    y["jacobian"][Rows.jacobian] = np.tile(np.eye(LENGTH), (2, 1))[..., None] * cotangent[0, 0]
    y["losses"][Rows.whole] = cotangent
    y["whole"][Rows.whole, : 2 * HALF] = cotangent[:, : 2 * HALF]
    y["row"][0] = cotangent[0]
    return everything, {name: (dy, np.float32(name == "losses")) for name, dy in y.items()}


@functools.cache
def training(case):
    """Outputs, losses, and gradients of parameters and inputs of the call; the same of packed documents, and of two
    calls of `prefill`."""
    graph, params, others = nnx.split(mixer_of(case), nnx.Param, ...)
    promised, stream, ids = CASES[case].capabilities, inputs(case), segment_ids()
    everything, cotangents = batch(case)

    def all_at_once(params, x):
        return nnx.merge(graph, params, others).with_losses(x, everything.context)

    def packed(params, x):
        context = dataclasses.replace(stream.context, segment_ids=jnp.asarray(ids))
        return nnx.merge(graph, params, others)(x, context)

    def cut_in_two(params, x):
        mixer = nnx.merge(graph, params, others)

        def half(state, now):
            y, state = mixer.prefill(now.x, state, now.context)
            return state, y

        halves = Stream(x, jnp.asarray(stream.tokens[:, : 2 * HALF]))
        halves = jax.tree.map(lambda x: x.reshape(BATCH, 2, HALF, *x.shape[2:]).swapaxes(0, 1), halves)
        return jax.lax.scan(half, mixer.init_state(BATCH, capacity=2 * HALF), halves)[1]

    @jax.jit
    def run(params, x, everything, cotangents, cotangent):
        (y, losses), pull_back = jax.vjp(all_at_once, params, everything)
        gradients = jax.lax.map(lambda dy: pull_back((dy[0], dict.fromkeys(losses, dy[1]))), cotangents)
        found = {"y": y, "losses": losses, "gradients": gradients}
        if not promised.streams:
            found["call"] = nnx.merge(graph, params, others)(x, stream.context)
        if promised.segments and promised.causal:
            y, pull_back = jax.vjp(packed, params, x)
            found["packed"] = y, pull_back(cotangent)
        if promised.streams:
            y, pull_back = jax.vjp(cut_in_two, params, x[:, : 2 * HALF])
            cotangents_of_halves = cotangent[:, : 2 * HALF].reshape(BATCH, 2, HALF, -1).swapaxes(0, 1)
            found["cut"] = y, pull_back(cotangents_of_halves)
        return found

    stacked = jax.tree.map(lambda *each: np.stack(each), *cotangents.values())
    found = run(params, stream.x, everything.x, stacked, inputs(case, seed=4).x)
    found = jax.tree.map(np.asarray, found)
    found["gradients"] = {
        name: jax.tree.map(lambda x: x[i], found["gradients"])  # noqa: B023
        for i, name in enumerate(cotangents)
    }
    return found


def assert_every_parameter_learns(case):
    """Every parameter has a gradient, and the loss terms are those that the config names."""
    found = training(case)
    for path, leaf in jax.tree.leaves_with_path(found["gradients"]["losses"][0]):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-4, path
    assert found["losses"].keys() == CASES[case].loss_weights.keys()
    for name, loss in found["losses"].items():
        assert (loss.shape, loss.dtype) == ((), np.float32), name
        assert np.isfinite(loss), name
    if "call" in found:
        assert_close(found["y"][Rows.whole], found["call"], what="output of with_losses")


@ALL
def test_an_output_depends_on_the_past_its_own_row_and_every_parameter(case):
    """Kills a look at the future (exactly 0, but for the rounding of a Fourier transform), a dead past, and a
    promise to see the future that is not kept. A selection by the future has no derivative: it shows by a change.
    Kills a mix-up of batch and time or heads: an output of row 0 has no gradient in any other row. Kills a parameter
    that nothing reads, a gradient that is not finite, a term without a weight, a weight without a term, an array for a
    scalar, a training output of its own."""
    assert_every_parameter_learns(case)
    found, promised = training(case), CASES[case].capabilities
    of_two = np.abs(found["gradients"]["jacobian"][1][Rows.jacobian]).reshape(2, LENGTH, LENGTH, -1)
    strength = of_two.max(axis=(0, 3))  # by chance an output of a squared ReLU has no gradient
    if promised.causal:
        assert np.triu(strength, 1).max() <= promised.future_rounding * strength.max(), "the future"
    else:
        change = np.abs(found["y"][Rows.futures] - found["y"][:1])[:, :5].max()
        assert change > 1e-4, "no output depends on the future"
    mixed = np.tril(strength, -1).any(axis=1) if promised.selects else np.ones(LENGTH, bool)
    assert mixed[1:].any(), "no output depends on the past"
    assert np.diagonal(strength)[mixed].min() > 1e-4, "the token itself"
    if not getattr(CASES[case], "look_back", True):
        mixed[:: CASES[case].block_size] = False  # the first of a block sees itself alone
    assert np.diagonal(strength, -1)[mixed[1:]].min() > 1e-5, "the token before"

    of_row = found["gradients"]["row"][1]
    assert np.abs(of_row[0]).max() > 1e-3
    np.testing.assert_array_equal(of_row[1:], 0, err_msg="other rows")


@cases(segments=True, causal=True)
def test_packed_documents_equal_the_documents_alone(case):
    """Kills a leak from one document into the next, in a filter, a window, a state, a denominator or a position, on the
    way forth and back."""
    found, (rows, first, stops) = training(case), documents()
    y, (dparams, dx) = found["packed"]
    alone, dalone = found["y"][Rows.alone], found["gradients"]["alone"][1][Rows.alone]
    for i, (row, start, stop) in enumerate(zip(rows, first, stops, strict=True)):
        assert_close(y[row, start:stop], alone[i, : stop - start], what=f"outputs of document {i}")
        assert_close(dx[row, start:stop], dalone[i, : stop - start], 1e-4, f"gradients of document {i}")
    assert_close(dparams, found["gradients"]["alone"][0], 1e-4, "gradients of parameters")
    assert np.abs(found["y"][Rows.whole] - y).max() > 1e-3, "the documents do differ from one long one"


@STREAMING
def test_call_and_gradients_equal_those_of_two_prefills(case):
    """Kills a training form that disagrees with the streaming forms; a state that stops gradients, or carries wrong
    ones: two halves must give one pass's gradients. They fill a state of their capacity, which must be exact."""
    found, tolerance = training(case), CASES[case].capabilities.prefill_tolerance
    y = np.concatenate(list(found["cut"][0]), axis=1)
    assert_close(found["y"][Rows.whole, : 2 * HALF], y, tolerance, "outputs")
    dparams, dx = found["gradients"]["whole"]
    assert_close(found["cut"][1], (dparams, dx[Rows.whole, : 2 * HALF]), 1e-4)


@cases(growing_state=True)
def test_a_capacity_sizes_the_state(case):
    """Kills a capacity that is ignored, or that nobody asks for."""
    mixer = mixer_of(case)
    assert state_bytes(mixer, capacity=2 * LENGTH) > 1.5 * state_bytes(mixer, capacity=LENGTH)
    with pytest.raises(ValueError, match="capacity=None must be positive"):
        mixer.init_state(1)


@pytest.mark.full
@cases(growing_state=True)
def test_a_full_state_is_exact(case):
    """Kills outputs that depend on the capacity, in blocks that it does not divide and in the last step, too."""
    graph, variables = nnx.split(mixer_of(case))
    whole = inputs(case, LENGTH + max(WARM))
    stream = Stream(*(x[:, :LENGTH] for x in whole))

    @jax.jit
    def run(variables, stream):
        mixer, outputs = nnx.merge(graph, variables), []
        for capacity in (LENGTH, LENGTH + 1):
            head, tail = (Stream(*(x[:, cut] for x in stream)) for cut in (slice(0, 7), slice(7, None)))
            y, state = mixer.prefill(head.x, mixer.init_state(BATCH, capacity=capacity), head.context)
            outputs.append(jnp.concatenate([y, in_turn(mixer, tail, state)[0]], axis=1))
        return outputs

    for y in run(variables, stream):
        assert_close(y, streams(case)["steps"][:, :LENGTH])


def test_what_a_mixer_does_not_honour_is_refused_by_name():
    """Kills a mixer that lets documents leak into each other and says nothing, segment ids that prefill and step ignore
    (a new document starts from a fresh state), an error from deep inside a mixer that nobody gave the token ids."""
    for case in TINY:
        mixer = nnx.eval_shape(lambda case=case: CASES[case].build(rngs=nnx.Rngs(0)))
        promised, (x, tokens) = CASES[case].capabilities, inputs(case)
        name, ids = type(mixer).__name__, segment_ids()
        packed, one = Context(tokens=tokens, segment_ids=ids), Context(tokens=tokens[:, 0], segment_ids=ids[:, 0])
        if not promised.segments:
            for run in (mixer, mixer.with_losses):
                with pytest.raises(ValueError, match=f"^{name} does not honour segment_ids"):
                    run(x, packed)
        if promised.streams:
            with pytest.raises(ValueError, match=f"^{name} got segment_ids with a state"):
                mixer.prefill(x, None, packed)
            with pytest.raises(ValueError, match=f"^{name} got segment_ids with a state"):
                mixer.step(x[:, 0], None, one)
        if promised.needs_tokens:
            with pytest.raises(ValueError, match=f"^{name} reads token ids, and got none"):
                mixer(x)
        if promised.needs_values:
            with pytest.raises(ValueError, match=f"^{name} mixes its values with those of an earlier layer"):
                mixer(x)


@pytest.mark.full
@pytest.mark.parametrize("case", sorted(TINY))
def test_bfloat16_stays_close(case):
    """Kills sums in bfloat16: the relative L2 error stays within 3 % (three roundings of 2^-8 a layer, the largest
    seen over all cases about 1.2 %), and the output has the dtype of the input."""
    expected, stream = training(case)["y"][Rows.whole], inputs(case)
    y = jax.jit(mixer_of(case))(stream.x.astype(jnp.bfloat16), stream.context)
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float32) - expected) <= 0.03 * np.linalg.norm(expected)


@pytest.mark.slow
@ALL
def test_jit_equals_eager(case):
    """Kills numbers that depend on how the program is built; eager, every operation is a program of its own."""
    mixer, stream = mixer_of(case), inputs(case)
    assert_close(jax.jit(mixer)(stream.x, stream.context), mixer(jnp.asarray(stream.x), stream.context), 1e-6)
