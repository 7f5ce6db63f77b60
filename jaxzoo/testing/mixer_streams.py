"""`step`, the reference of a mixer, and `prefill` from its intermediate states."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Context, Mixer, MixerConfig, state_bytes
from jaxzoo.testing.mixer_inputs import BATCH, HALF, LENGTH, MAX_LENGTH, WARM, Sequences, assert_close, build, inputs

LENGTHS = (0, 1, 4, LENGTH)
"""Numbers of tokens of a prefill: none, one, a chunk of `tiny()`, and several chunks with a remainder."""


def in_turn(mixer: Mixer, stream: Sequences, state: Any) -> tuple[Any, Any]:
    """Outputs `(b, t, d)` of `step`, and the initial state and the state after each token `(t + 1, b, ...)`."""

    def step(state, now):
        y, state = mixer.step(now.x, state, now.context)
        return state, (y, state)

    y, states = jax.lax.scan(step, state, jax.tree.map(lambda x: x.swapaxes(0, 1), stream))[1]
    whole = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), state, states)
    return y.swapaxes(0, 1), whole


def starts(length: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, place) of the tokens of every window of that length in the streams, which begin at `WARM`."""
    rows, places = np.meshgrid(np.arange(BATCH), np.arange(LENGTH - length + 1), indexing="ij")
    return rows.ravel(), (places + np.array(WARM)[:, None]).ravel()


@functools.cache
def streams(config: MixerConfig, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Runs `step` over the inputs, and from each intermediate state `prefill` of each length."""
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


def check_streams(config: MixerConfig, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Checks that `prefill` of any number of tokens from any state equals steps, and states keep shapes and dtypes.

    Args:
      config: a config returned by `ready`.
      lengths: numbers of tokens of a prefill, at most `LENGTH`; each compiles a program.
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


def assert_state_keeps_structure(config: MixerConfig, states: Any) -> None:
    """Checks, by tracing only, that the state keeps shapes and dtypes with bfloat16 activations, and its size; `states`
    has one more axis."""
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


def check_values(config: MixerConfig) -> None:
    """Checks that `values` are equal in the call, in `prefill` and in `step`."""
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
