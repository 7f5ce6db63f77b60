"""`check_mixer`: the contract of `jaxzoo.mixers.base`, asked of a mixer as far as its capabilities promise.

For the tests of your own mixer, wherever it is defined:

    from jaxzoo.testing import check_mixer

    def test_my_mixer():
        check_mixer(MyMixerConfig.tiny())

The truth is `step`, token by token, the simplest of the three forms; check it against your equation by a test of your
own. Few programs are compiled for a mixer, and their results are cached: `streams` runs `step` and `prefill`,
`training` the call and the gradients. Each `check_*` function reads them and raises AssertionError for one invariant.

`check_task` does the same for a task; see `jaxzoo.tasks.contract`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Context, Inherited, Mixer, MixerConfig, state_bytes
from jaxzoo.quick_prng import QUICK_PRNG
from jaxzoo.tasks.contract import check_task as check_task

BATCH, LENGTH = 3, 13
WARM = (0, 4, 9)
"""Tokens that each row has seen before a stream begins."""
LENGTHS = (0, 1, 4, LENGTH)
"""Tokens of a prefill, from the state after any number of tokens: none, one, a chunk of `tiny()`, and several with a
rest."""
HALF = LENGTH // 2
DOCUMENTS = ((1, 5, 2, 5), (13,), (4, 1, 8))
"""Lengths of the documents that are packed into each row."""


SEED = 2
"""Seed of the parameters. With some others the norm of a head divides by almost nothing, and bfloat16 shows it."""
N_TOKENS = 13
"""Token ids that the inputs hold are below."""
MAX_LENGTH = 40
"""Taps of long filters, and capacity of growing states: more than any check feeds."""


def check_mixer(config: MixerConfig) -> None:
    """Checks all that a mixer promises, with weights of standard deviation 0.5 so that wrong mixing shows.

    Args:
      config: a small one, such as `tiny()`: widths of some 16 at most.

    Raises:
      AssertionError: an invariant does not hold; the message names it.
      ValueError: what the mixer itself refuses.
    """
    for results in (build, streams, training):  # those of a class that a notebook has defined once more
        results.cache_clear()
    config = ready(config)
    promised = config.capabilities
    check_parameters(config)
    check_dependence(config)
    check_dtypes(config)
    if promised.streams:
        check_streams(config)
        check_call(config)
        check_gradients(config)
    if promised.streams and promised.makes_values:
        check_values(config)
    if promised.segments:
        check_documents(config)


def ready(config: MixerConfig) -> MixerConfig:
    """Large weights, so that wrong mixing shows in the numbers."""
    config = dataclasses.replace(config, init_std=0.5, out_init_std=0.5)
    model = Inherited(d_model=config.width, max_length=MAX_LENGTH, init_std=0.5, out_init_std=0.5)
    return config.inherit(model)


@functools.cache
def build(config: MixerConfig) -> Mixer:
    """The mixer with every parameter moved off its initial value: no zero bias, no scale of one; once for a config.

    One compiled program draws all parameters; built eagerly, each would be a program of its own.
    """
    definition: list = []

    def draw(seed: jax.Array) -> tuple:
        rngs = nnx.Rngs(jax.random.wrap_key_data(seed, impl=QUICK_PRNG))
        graph, *variables = nnx.split(config.build(rngs=rngs), nnx.Param, ...)
        definition.append(graph)
        return tuple(variables)

    parameters, others = jax.jit(draw)(np.full(1, SEED, np.uint32))
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda x: (np.asarray(x) + 0.1 * rng.normal(size=x.shape)).astype(x.dtype), parameters)
    return nnx.merge(definition[0], jax.tree.map(jax.device_put, moved), others)


class Sequences(NamedTuple):
    """Inputs and token ids, as NumPy arrays: each cut of a JAX array would be a program to compile."""

    x: Any
    tokens: Any

    def at(self, rows: Any, places: Any) -> "Sequences":
        """The tokens at these rows and places."""
        return Sequences(self.x[rows, places], self.tokens[rows, places])

    @property
    def context(self) -> Context:
        """Token ids, and values of an earlier layer."""
        return Context(tokens=jnp.asarray(self.tokens), first_values=jax.lax.stop_gradient(jnp.sin(self.x)))


def inputs(config: MixerConfig, length: int = LENGTH, seed: int = 2) -> Sequences:
    """Random tokens; shorter inputs begin longer ones, up to the longest that a check feeds."""
    rng = np.random.default_rng(seed)

    def more(n: int) -> Sequences:
        x = rng.normal(size=(BATCH, n, config.width)).astype(np.float32)
        return Sequences(x, rng.integers(N_TOKENS, size=(BATCH, n), dtype=np.int32))

    parts = zip(more(LENGTH), more(max(WARM)), strict=True)
    return Sequences(*(np.concatenate(each, axis=1)[:, :length] for each in parts))


def in_turn(mixer: Mixer, stream: Sequences, state: Any) -> tuple[Any, Any]:
    """Outputs `(b, t, d)` of `step`, and the states before the first and after every token `(t + 1, b, ...)`."""

    def step(state, now):
        y, state = mixer.step(now.x, state, now.context)
        return state, (y, state)

    y, states = jax.lax.scan(step, state, jax.tree.map(lambda x: x.swapaxes(0, 1), stream))[1]
    whole = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), state, states)
    return y.swapaxes(0, 1), whole


def starts(length: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, place) of every token of every stretch of that length of the streams, which begin at `WARM`."""
    rows, places = np.meshgrid(np.arange(BATCH), np.arange(LENGTH - length + 1), indexing="ij")
    return rows.ravel(), (places + np.array(WARM)[:, None]).ravel()


@functools.cache
def streams(config: MixerConfig, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Inputs in turn; and from the state after any number of them, the next ones at once, as many as each length."""
    graph, variables = nnx.split(build(config))

    @jax.jit
    def run(variables, stream):
        mixer = nnx.merge(graph, variables)
        stepped, states = in_turn(mixer, stream, mixer.init_state(BATCH, capacity=MAX_LENGTH))
        prefilled = {}
        for length in lengths:
            rows, places = starts(length)
            part = stream.at(rows[:, None], places[:, None] + np.arange(length)[None])
            prefilled[length] = mixer.prefill(part.x, jax.tree.map(lambda x: x[places, rows], states), part.context)  # noqa: B023
        return {"steps": stepped, "states": states, "prefill": prefilled}

    return jax.tree.map(np.asarray, run(variables, inputs(config, LENGTH + max(WARM))))


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5, what: str = "") -> None:
    """Every leaf within `tolerance` of the largest finite entry of its expectation (at least 1)."""

    def leaf(path, actual, expected):
        sizes = np.abs(np.asarray(expected, np.float64))
        scale = max(1.0, float(sizes.max(initial=0, where=np.isfinite(sizes))))
        message = f"{what}{jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, err_msg=message)

    jax.tree.map_with_path(leaf, actual, expected)


def assert_state_keeps_structure(config: MixerConfig, states: Any) -> None:
    """The state keeps shapes and dtypes under bfloat16 activations, and its size is that of its arrays, of which
    `states` holds one more axis; only traced."""
    mixer = build(config)
    assert state_bytes(mixer, BATCH, capacity=MAX_LENGTH) == sum(leaf[0].nbytes for leaf in states)
    if config.capabilities.growing_state:
        assert state_bytes(mixer, capacity=1000) > state_bytes(mixer, capacity=MAX_LENGTH), "the capacity is ignored"
    else:
        assert state_bytes(mixer) == state_bytes(mixer, capacity=1000)

    def prefill_and_step(state, x, tokens):
        _, prefilled = mixer.prefill(x, state, Context(tokens=tokens, first_values=x))
        return prefilled, mixer.step(x[:, 0], prefilled, Context(tokens=tokens[:, 0], first_values=x[:, 0]))[1]

    tokens = jax.ShapeDtypeStruct((BATCH, 3), jnp.int32)
    for dtype in (jnp.float32, jnp.bfloat16):
        state = jax.eval_shape(lambda: mixer.init_state(BATCH, capacity=MAX_LENGTH, dtype=dtype))  # noqa: B023
        x = jax.ShapeDtypeStruct((BATCH, 3, config.d_model), dtype)
        for after in jax.eval_shape(prefill_and_step, state, x, tokens):
            assert jax.tree.structure(after) == jax.tree.structure(state)
            for before, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
                assert (leaf.shape, leaf.dtype, leaf.weak_type) == (before.shape, before.dtype, before.weak_type)
                assert leaf.shape[0] == BATCH


def segment_ids() -> np.ndarray:
    """Ids by row: neighbours differ, and neither start at 0 nor rise by 1."""
    rows = [np.repeat(7 - 3 * np.arange(len(lengths)), lengths) for lengths in DOCUMENTS]
    return np.stack(rows).astype(np.int32)


def documents() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, first places and places after the last one of all documents."""
    ends = [np.cumsum(lengths) for lengths in DOCUMENTS]
    rows = np.repeat(np.arange(BATCH), [len(lengths) for lengths in DOCUMENTS])
    stops = np.concatenate(ends)
    return rows, stops - np.concatenate(DOCUMENTS), stops


class BatchRows(NamedTuple):
    """Rows of the batch of `training`."""

    whole = slice(0, BATCH)
    alone = slice(BATCH, BATCH + sum(map(len, DOCUMENTS)))
    """Each document at the start of a row of its own; something else follows, for a mixer that sees the future as
    another document."""
    jacobian = slice(alone.stop, alone.stop + 2 * LENGTH)
    """Sums of neighbours of the first two rows, once for each of their places."""
    futures = slice(jacobian.stop, jacobian.stop + 8)
    """The first 5 tokens of the first row, and other tokens after them."""
    packed = slice(futures.stop, futures.stop + BATCH)
    """The rows of `whole` again, as documents one after the other where segments are honoured."""


def batch(config: MixerConfig) -> tuple[Sequences, np.ndarray, dict[str, tuple[np.ndarray, np.float32]]]:
    """The inputs of `training`, their segment ids, and for each of its gradients the cotangents of outputs, losses."""
    stream = inputs(config)
    rows, first, stops = documents()
    places = first[:, None] + np.arange(LENGTH)[None]
    own = places < stops[:, None]
    places = np.minimum(places, LENGTH - 1)
    alone, copies = stream.at(rows[:, None], places), stream.at(np.repeat([0, 1], LENGTH), slice(None))
    copies.x[:, 1:] += copies.x[:, :-1]  # a filter from the inputs' correlations has a tap at distance 1
    others = [inputs(config, seed=seed).at([0], slice(None)) for seed in range(20, 28)]
    futures = jax.tree.map(lambda first, *rest: np.concatenate(rest), stream, *others)
    for all_rows, given in zip(futures, stream, strict=True):
        all_rows[:, :5] = given[:1, :5]
    everything = Sequences(
        *(np.concatenate(parts) for parts in zip(stream, alone, copies, futures, stream, strict=True))
    )
    ids = np.full(everything.tokens.shape, 7, np.int32)
    ids[BatchRows.packed] = segment_ids()
    if not config.capabilities.causal:
        ids[BatchRows.alone] = np.where(own, 7, 8)

    cotangent = inputs(config, seed=4).x
    y = {name: np.zeros_like(everything.x) for name in ("alone", "packed", "jacobian", "whole", "row", "losses")}
    y["alone"][BatchRows.alone] = np.where(own[..., None], cotangent[rows[:, None], places], 0)
    y["jacobian"][BatchRows.jacobian] = np.tile(np.eye(LENGTH), (2, 1))[..., None] * cotangent[0, 0]
    y["losses"][BatchRows.whole] = y["packed"][BatchRows.packed] = cotangent
    y["whole"][BatchRows.whole, : 2 * HALF] = cotangent[:, : 2 * HALF]
    y["row"][0] = cotangent[0]
    return everything, ids, {name: (dy, np.float32(name == "losses")) for name, dy in y.items()}


@functools.cache
def training(config: MixerConfig) -> dict[str, Any]:
    """Outputs, losses, and gradients of parameters and inputs of the call, with segment ids where they are honoured;
    outputs of the call without, unless those of `step` are the same test."""
    graph, params, others = nnx.split(build(config), nnx.Param, ...)
    promised, stream = config.capabilities, inputs(config)
    everything, ids, cotangents = batch(config)
    segments = {"segment_ids": jnp.asarray(ids)} if promised.segments else {}

    @jax.jit
    def run(params, everything, cotangents):
        def all_at_once(params, x):
            context = dataclasses.replace(Sequences(x, everything.tokens).context, **segments)
            return nnx.merge(graph, params, others).with_losses(x, context)

        (y, losses), pull_back = jax.vjp(all_at_once, params, everything.x)
        gradients = jax.lax.map(lambda dy: pull_back((dy[0], dict.fromkeys(losses, dy[1]))), cotangents)
        return {"y": y, "losses": losses, "gradients": gradients}

    stacked = jax.tree.map(lambda *each: np.stack(each), *cotangents.values())
    found = jax.tree.map(np.asarray, run(params, everything, stacked))
    found["gradients"] = {
        name: jax.tree.map(lambda x: x[i], found["gradients"])  # noqa: B023
        for i, name in enumerate(cotangents)
    }
    if not promised.streams or type(build(config)).with_losses is not Mixer.with_losses:
        plain = jax.jit(lambda params, stream: nnx.merge(graph, params, others)(stream.x, stream.context))
        found["call"] = np.asarray(plain(params, stream))
    return found


def check_gradients(config: MixerConfig) -> None:
    """The call and its gradients equal those of two calls of `prefill`, the second from the state of the first, which
    fill a state of their capacity; and its gradients those of as many steps, which share no VJP with it."""
    graph, params, others = nnx.split(build(config), nnx.Param, ...)

    @jax.jit
    def prefill(params, state, half, dy, dstate):
        def of(params, state, x):
            return nnx.merge(graph, params, others).prefill(x, state, Sequences(x, half.tokens).context)

        (y, after), pull_back = jax.vjp(of, params, state, half.x)
        return y, after, pull_back((dy, dstate))

    @jax.jit
    def steps(params, state, stream, dy):
        def of(params, x):
            return in_turn(nnx.merge(graph, params, others), Sequences(x, stream.tokens), state)[0]

        return jax.vjp(of, params, stream.x)[1](dy)

    halves = [inputs(config).at(slice(None), slice(at, at + HALF)) for at in (0, HALF)]
    cotangents = [inputs(config, seed=4).x[:, at : at + HALF] for at in (0, HALF)]
    start = jax.tree.map(np.asarray, build(config).init_state(BATCH, capacity=2 * HALF))

    def zero(leaf):  # integers have cotangents of no bytes
        return np.zeros(leaf.shape, leaf.dtype if np.issubdtype(leaf.dtype, np.floating) else jax.dtypes.float0)

    nothing = jax.tree.map(zero, start)
    _, middle, _ = prefill(params, start, halves[0], cotangents[0], nothing)
    second, _, (dparams, dmiddle, dx) = prefill(params, middle, halves[1], cotangents[1], nothing)
    first, _, (dparams_of_first, _, dx_of_first) = prefill(params, start, halves[0], cotangents[0], dmiddle)
    dparams = jax.tree.map(lambda *each: sum(map(np.asarray, each)), dparams, dparams_of_first)
    found, tolerance, both = training(config), config.capabilities.prefill_tolerance, np.concatenate([first, second], 1)
    assert_close(found["y"][BatchRows.whole, : 2 * HALF], both, tolerance, "outputs")
    of_params, of_x = found["gradients"]["whole"]
    gradients = dparams, np.concatenate([dx_of_first, dx], axis=1)
    expected = of_params, of_x[BatchRows.whole, : 2 * HALF]
    assert_close(gradients, expected, 1e-4, "gradients of prefill")
    stream = inputs(config).at(slice(None), slice(0, 2 * HALF))
    assert_close(steps(params, start, stream, np.concatenate(cotangents, 1)), expected, 1e-4, "gradients of steps")


def check_parameters(config: MixerConfig) -> None:
    """Outputs are finite, every parameter has a gradient, and the loss terms are those that the config names."""
    found = training(config)
    assert np.isfinite(found["y"]).all(), "outputs are not finite"
    for path, leaf in jax.tree.leaves_with_path(found["gradients"]["losses"][0]):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-4, path
    assert found["losses"].keys() == config.loss_weights.keys()
    for name, loss in found["losses"].items():
        assert (loss.shape, loss.dtype) == ((), np.float32), name
        assert np.isfinite(loss), name
    if "call" in found:
        assert_close(found["y"][BatchRows.whole], found["call"], what="output of with_losses")


def check_dependence(config: MixerConfig) -> None:
    """Outputs depend on the past, on the future only where promised, and on no other row.

    What comes in by tokens or by a selection has no derivative: it shows by a change of the future.
    """
    found, promised = training(config), config.capabilities
    of_two = np.abs(found["gradients"]["jacobian"][1][BatchRows.jacobian]).reshape(2, LENGTH, LENGTH, -1)
    strength = of_two.max(axis=(0, 3))  # by chance an output of a squared ReLU has no gradient
    futures, first = found["y"][BatchRows.futures, :5], found["y"][:1, :5]
    if promised.causal:
        assert np.triu(strength, 1).max() <= promised.future_rounding * strength.max(), "the future"
        same = np.broadcast_to(first, futures.shape)
        assert_close(futures, same, max(1e-5, promised.future_rounding), "outputs before another future")
    else:
        change = np.abs(futures - first).max()
        assert change > 1e-4, "no output depends on the future"
    mixed = np.tril(strength, -1).any(axis=1) if promised.selects else np.ones(LENGTH, bool)
    assert mixed[1:].any(), "no output depends on the past"
    assert np.diagonal(strength)[mixed].min() > 1e-4, "the token itself"
    if not getattr(config, "look_back", True):  # the first of a block sees itself alone
        block_size: int = vars(config)["block_size"]
        mixed[::block_size] = False
    assert np.diagonal(strength, -1)[mixed[1:]].min() > 1e-5, "the token before"

    of_row = found["gradients"]["row"][1]
    assert np.abs(of_row[0]).max() > 1e-3
    np.testing.assert_array_equal(of_row[1:], 0, err_msg="other rows")


def check_streams(config: MixerConfig, lengths: tuple[int, ...] = LENGTHS) -> None:
    """`prefill` of any number of tokens from any state equals as many steps; states keep shapes and dtypes.

    Args:
      config: one that `ready` returned.
      lengths: numbers of tokens of a prefill, at most `LENGTH`; each is compiled on its own.
    """
    found, tolerance = streams(config, lengths), config.capabilities.prefill_tolerance
    assert np.isfinite(found["steps"]).all(), "outputs of step are not finite"
    assert_state_keeps_structure(config, found["states"])
    for length in lengths:
        rows, places = starts(length)
        y, state = found["prefill"][length]
        expected = found["steps"][rows[:, None], places[:, None] + np.arange(length)[None]]
        assert_close(y, expected, tolerance, f"outputs of {length} tokens")
        after = jax.tree.map(lambda x: x[places + length, rows], found["states"])  # noqa: B023
        assert_close(state, after, tolerance, f"state after {length} tokens")


def check_dtypes(config: MixerConfig) -> None:
    """Outputs have shape and dtype of the input, in bfloat16 too; only traced."""
    mixer = build(config)

    def outputs(x, tokens):
        context = Context(tokens=tokens, first_values=x)
        found = [(mixer(x, context), x), (mixer.with_losses(x, context)[0], x)]
        if config.capabilities.streams:
            state = mixer.init_state(BATCH, capacity=MAX_LENGTH, dtype=x.dtype)
            now = Context(tokens=tokens[:, 0], first_values=x[:, 0])
            found += [(mixer.prefill(x, state, context)[0], x), (mixer.step(x[:, 0], state, now)[0], x[:, 0])]
        return found

    tokens = jax.ShapeDtypeStruct((BATCH, 3), jnp.int32)
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jax.ShapeDtypeStruct((BATCH, 3, config.width), dtype)
        for y, given in jax.eval_shape(outputs, x, tokens):
            assert (y.shape, y.dtype) == (given.shape, given.dtype), f"output {y} of the input {given}"


def check_values(config: MixerConfig) -> None:
    """`values` of the call, and of `prefill` from the state after some tokens, equal those of `step`."""
    graph, variables = nnx.split(build(config))

    @jax.jit
    def run(variables, head, tail):
        mixer = nnx.merge(graph, variables)
        start = mixer.init_state(BATCH, capacity=MAX_LENGTH)
        whole = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), head, tail)
        states = in_turn(mixer, whole, start)[1]
        before, tokens = jax.tree.map(lambda x: x[:-1], states), jax.tree.map(lambda x: x.swapaxes(0, 1), whole)
        stepped = jax.lax.map(lambda at: mixer.values(at[1].x, at[0], at[1].context), (before, tokens))
        middle = jax.tree.map(lambda x: x[HALF], states)
        prefilled = [mixer.values(head.x, start, head.context), mixer.values(tail.x, middle, tail.context)]
        called = mixer.values(whole.x, None, whole.context)
        return stepped.swapaxes(0, 1), jnp.concatenate(prefilled, axis=1), called

    stream = inputs(config)
    parts = (stream.at(slice(None), cut) for cut in (slice(0, HALF), slice(HALF, None)))
    stepped, prefilled, called = map(np.asarray, run(variables, *parts))
    assert_close(prefilled, stepped, what="values of prefill")
    assert_close(called, stepped, what="values of the call")


def check_documents(config: MixerConfig) -> None:
    """Packed documents give the outputs and gradients of the documents alone."""
    found, (rows, first, stops) = training(config), documents()
    y, (dparams, dx) = found["y"][BatchRows.packed], found["gradients"]["packed"]
    dx = dx[BatchRows.packed]
    alone, dalone = found["y"][BatchRows.alone], found["gradients"]["alone"][1][BatchRows.alone]
    for i, (row, start, stop) in enumerate(zip(rows, first, stops, strict=True)):
        assert_close(y[row, start:stop], alone[i, : stop - start], what=f"outputs of document {i}")
        assert_close(dx[row, start:stop], dalone[i, : stop - start], 1e-4, f"gradients of document {i}")
    assert_close(dparams, found["gradients"]["alone"][0], 1e-4, "gradients of parameters")
    assert np.abs(found["y"][BatchRows.whole] - y).max() > 1e-3, "the documents do differ from one long one"


def check_call(config: MixerConfig, lengths: tuple[int, ...] = LENGTHS) -> None:
    """The call gives the outputs of `step`."""
    stepped = streams(config, lengths)["steps"][:, :LENGTH]
    assert_close(training(config)["y"][BatchRows.whole], stepped, config.capabilities.prefill_tolerance, "outputs")
