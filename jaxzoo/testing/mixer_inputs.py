"""Mixers under test, with perturbed parameters, and their inputs."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Context, Inherited, Mixer, MixerConfig
from jaxzoo.testing.quick_prng import QUICK_PRNG

BATCH, LENGTH = 3, 13
WARM = (0, 4, 9)
"""Tokens seen by each row before a stream begins."""
HALF = LENGTH // 2
DOCUMENTS = ((1, 5, 2, 5), (13,), (4, 1, 8))
"""Lengths of the documents that are packed into each row."""
SEED = 2
"""Seed of the parameters. With some seeds the norm of a head divides by almost 0, which fails in bfloat16."""
N_TOKENS = 13
"""Upper bound of token ids in the inputs."""
MAX_LENGTH = 40
"""Taps of long filters, and capacity of growing states; longer than all inputs."""


def ready(config: MixerConfig) -> MixerConfig:
    """Large weights, so that wrong mixing is visible."""
    config = dataclasses.replace(config, init_std=0.5, out_init_std=0.5)
    model = Inherited(d_model=config.width, max_length=MAX_LENGTH, init_std=0.5, out_init_std=0.5)
    return config.inherit(model)


@functools.cache
def build(config: MixerConfig) -> Mixer:
    """Builds the mixer with every parameter perturbed, so that no bias is 0 and no scale is 1; cached per config.

    One compiled program draws all parameters, instead of one program each.
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
    """Inputs and token ids, as NumPy arrays, since each slice of a JAX array compiles a program."""

    x: Any
    tokens: Any

    def at(self, rows: Any, places: Any) -> "Sequences":
        """Selects the tokens at given rows and places."""
        return Sequences(self.x[rows, places], self.tokens[rows, places])

    @property
    def context(self) -> Context:
        """Token ids, and values of an earlier layer."""
        return Context(tokens=jnp.asarray(self.tokens), first_values=jax.lax.stop_gradient(jnp.sin(self.x)))


def inputs(config: MixerConfig, length: int = LENGTH, seed: int = 2) -> Sequences:
    """Random tokens; shorter inputs are prefixes of longer ones."""
    rng = np.random.default_rng(seed)

    def more(n: int) -> Sequences:
        x = rng.normal(size=(BATCH, n, config.width)).astype(np.float32)
        return Sequences(x, rng.integers(N_TOKENS, size=(BATCH, n), dtype=np.int32))

    parts = zip(more(LENGTH), more(max(WARM)), strict=True)
    return Sequences(*(np.concatenate(each, axis=1)[:, :length] for each in parts))


def segment_ids() -> np.ndarray:
    """Segment ids per row; neighbours differ, and ids neither start at 0 nor increase by 1."""
    rows = [np.repeat(7 - 3 * np.arange(len(lengths)), lengths) for lengths in DOCUMENTS]
    return np.stack(rows).astype(np.int32)


def documents() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, starts and stops of all documents."""
    ends = [np.cumsum(lengths) for lengths in DOCUMENTS]
    rows = np.repeat(np.arange(BATCH), [len(lengths) for lengths in DOCUMENTS])
    stops = np.concatenate(ends)
    return rows, stops - np.concatenate(DOCUMENTS), stops


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5, what: str = "") -> None:
    """Asserts that every leaf is within `tolerance` times the largest finite expected entry (at least 1)."""

    def leaf(path, actual, expected):
        sizes = np.abs(np.asarray(expected, np.float64))
        scale = max(1.0, float(sizes.max(initial=0, where=np.isfinite(sizes))))
        message = f"{what}{jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, err_msg=message)

    jax.tree.map_with_path(leaf, actual, expected)
