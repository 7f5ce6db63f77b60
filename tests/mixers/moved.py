"""Mixers with parameters that hide nothing, no bias of zero and no scale of one, and a check of their outputs."""

import jax
import numpy as np
from flax import nnx

from jaxzoo.testing.quick_prng import QUICK_PRNG


def moved(make):
    """The module with noise on every parameter, and its parameters in float64, by dotted path.

    Args:
      make: the module, or a function of no arguments that makes it: then one compiled program draws all parameters.
    """
    if isinstance(make, nnx.Module):
        definition, parameters = nnx.split(make)
    else:
        definitions = []

        def draw():
            definition, parameters = nnx.split(make())
            definitions.append(definition)
            return parameters

        parameters = jax.jit(draw)()
        (definition,) = definitions
    leaves, tree = jax.tree.flatten(parameters)
    rng = np.random.default_rng(1)
    noisy = [(leaf + rng.normal(0, 0.5, leaf.shape)).astype(np.float32) for leaf in map(np.asarray, leaves)]
    parameters = jax.tree.unflatten(tree, noisy)
    names = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(parameters)]
    flat = {name: np.asarray(leaf, np.float64) for name, leaf in zip(names, noisy, strict=True)}
    return nnx.merge(definition, jax.tree.unflatten(tree, [jax.device_put(leaf) for leaf in noisy])), flat


def quick_rngs(seed=0):
    """`nnx.Rngs` of a generator whose programs compile quickly."""
    return nnx.Rngs(jax.random.key(seed, impl=QUICK_PRNG))


def abstract_mixer(config):
    """The config's mixer with shapes for parameters: nothing is computed or compiled."""
    return nnx.eval_shape(lambda: config.build(rngs=quick_rngs()))


def moved_mixer(config):
    """`moved` of the config's mixer."""
    return moved(lambda: config.build(rngs=quick_rngs()))


def assert_computes(mixer, x, expected, tolerance=1e-5):
    """The outputs of all tokens at once are those of an independent truth, within `tolerance` of its largest entry;
    that a stream gives the same is asked by the contract."""
    graph, variables = nnx.split(mixer)
    y = jax.jit(lambda variables, x: nnx.merge(graph, variables)(x))(variables, np.asarray(x, np.float32))
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * np.abs(expected).max())
