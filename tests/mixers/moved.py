"""Mixers with parameters that hide nothing: no bias of zero, no scale of one."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def moved(mixer):
    """The mixer with noise on every parameter, and its parameters in float64, by dotted path."""
    definition, parameters = nnx.split(mixer)
    leaves, tree = jax.tree.flatten(parameters)
    rng = np.random.default_rng(1)
    noisy = [jnp.asarray(leaf + rng.normal(0, 0.5, leaf.shape), jnp.float32) for leaf in map(np.asarray, leaves)]
    parameters = jax.tree.unflatten(tree, noisy)
    flat = {".".join(map(str, path)): np.asarray(p[...], np.float64) for path, p in nnx.to_flat_state(parameters)}
    return nnx.merge(definition, parameters), flat
