"""Call and gradients of a mixer compared with `prefill` and steps."""

import jax
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import MixerConfig
from jaxzoo.testing.mixer_inputs import BATCH, HALF, LENGTH, Sequences, assert_close, build, inputs
from jaxzoo.testing.mixer_streams import LENGTHS, in_turn, streams
from jaxzoo.testing.mixer_training import BatchRows, training


def check_call(config: MixerConfig, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Checks that the call gives the outputs of `step`."""
    stepped = streams(config, lengths)["steps"][:, :LENGTH]
    assert_close(training(config)["y"][BatchRows.whole], stepped, config.capabilities.prefill_tolerance, "outputs")


def check_gradients(config: MixerConfig) -> None:
    """Checks that the call and its gradients equal those of two `prefill` calls that fill a state to capacity, and that
    its gradients equal those of steps, which share no VJP with it."""
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

    def zero(leaf):  # integers have float0 cotangents
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
