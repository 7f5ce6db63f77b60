"""AdamW in optax pieces: schedule, clipping, and the mask that says what is decayed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr

from jaxzoo.config import OptimizerConfig


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate of update number `count = 0 .. steps - 1`.

    With `w = round(warmup_fraction * steps)` it is `count / w` of the peak for `count < w` (0 at the first
    update), the peak at `count = w`, and `final_fraction` of the peak at the last update; `constant` stays
    at the peak.
    """
    warmup = round(config.warmup_fraction * steps)
    rest = max(steps - 1 - warmup, 1)

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        count = jnp.asarray(count, jnp.float32)
        done = jnp.clip((count - warmup) / rest, 0.0, 1.0)
        left = {
            "cosine": 0.5 * (1 + jnp.cos(math.pi * done)),
            "linear": 1 - done,
            "constant": jnp.ones_like(done),
        }[config.schedule]
        falling = config.final_fraction + (1 - config.final_fraction) * left
        return config.learning_rate * jnp.where(count < warmup, count / max(warmup, 1), falling)

    return schedule


def decay_mask(axes: dict, config: OptimizerConfig) -> dict:
    """Which parameters are decayed, in the structure of the parameters.

    Embeddings (by path) as `decay_embeddings` says, vectors (norms, biases) as `decay_vectors` says, all
    else always.

    Args:
      axes: logical axes of each parameter. Their number is its rank without the axis of stacked layers, so
        that a stack of biases counts as vectors.
      config: the two switches.
    """

    def decays(path: Any, axes: tuple[str | None, ...]) -> bool:
        if "embedding" in keystr(path, simple=True, separator="/"):
            return config.decay_embeddings
        return config.decay_vectors or len(axes) > 1

    return jax.tree_util.tree_map_with_path(decays, axes, is_leaf=lambda x: isinstance(x, tuple))


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule, axes: dict) -> optax.GradientTransformation:
    """AdamW: `x -= rate * (adam(clip(g)) + mask * weight_decay * x)` (Loshchilov and Hutter 2019).

    Args:
      config: its constants.
      schedule: learning rate by update number.
      axes: logical axes of each parameter, for `decay_mask`.
    """
    mask = decay_mask(axes, config)

    def add_decay(updates: Any, params: Any) -> Any:
        return jax.tree.map(lambda u, x, m: u + config.weight_decay * x if m else u, updates, params, mask)

    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity(),
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps),
        optax.stateless(add_decay),
        optax.scale_by_learning_rate(schedule),
    )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of its int32 count
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)
