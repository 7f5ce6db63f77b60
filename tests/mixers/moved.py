"""Mixers with parameters that hide nothing, no bias of zero and no scale of one, and a check of their outputs."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Context
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


def assert_gradients(mixer, p, x, truth, *, segment_ids=None, prefix=None, values=2e-5, gradients=1e-4):
    """Outputs, and gradients of every parameter and of the input, are those of an independent truth in float64.

    A gradient is compared along a random direction, with the truth's central difference, whose own error is below 1e-7.

    Args:
      mixer: with parameters `p`, a dictionary by dotted path.
      x: float64 inputs (b, t, d).
      truth: of `p`, `x` and `segment_ids`, in NumPy.
      segment_ids: packed documents, given to both.
      prefix: `Context.prefix`, given to the mixer; the truth knows it.
      values: largest error of an output, as a share of the largest entry.
      gradients: largest error of a derivative along a direction, as a share of the gradient's length.

    Returns:
      the largest error of the outputs and of the derivatives, likewise.
    """
    rng, graph, variables = np.random.default_rng(5), *nnx.split(mixer)
    dy = rng.normal(size=x.shape)
    context = Context(segment_ids=None if segment_ids is None else jnp.asarray(segment_ids, jnp.int32), prefix=prefix)

    @jax.jit
    def run(variables, x):
        y, pull_back = jax.vjp(lambda variables, x: nnx.merge(graph, variables)(x, context), variables, x)
        return y, pull_back(jnp.asarray(dy, y.dtype))

    y, (dp, dx) = run(variables, np.asarray(x, np.float32))
    expected = truth(p, x, segment_ids)
    error = np.abs(y - expected).max() / np.abs(expected).max()
    assert error <= values, error
    found, at = {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(dp)}, {"": x, **p}
    found = {name: np.asarray(leaf, np.float64) for name, leaf in {**found, "": dx}.items()}
    errors, h, least = (
        {},
        1e-5,
        1e-2 * max(map(np.linalg.norm, found.values())),
    )  # some gradients are 0 but for rounding
    for name, value in at.items():
        along = rng.normal(size=value.shape)
        sides = [{**at, name: value + step * along} for step in (h, -h)]
        up, down = ((truth(side, side[""], segment_ids) * dy).sum() for side in sides)
        difference = (found[name] * along).sum() - (up - down) / (2 * h)
        errors[name] = abs(difference) / max(np.linalg.norm(found[name]), least)
    assert max(errors.values()) <= gradients, errors
    return error, max(errors.values())
