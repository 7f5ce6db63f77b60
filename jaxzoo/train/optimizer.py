"""AdamW in optax's pieces: the schedule, clipping, and what each parameter says of its decay and its learning rate."""

from typing import Any

import jax
import optax

from jaxzoo.array_typing import Array, Float
from jaxzoo.config import OptimizerConfig
from jaxzoo.layers.variables import Traits


def make_schedule(
    config: OptimizerConfig, steps: int, *, peak: Float[Array, ""] | float | None = None
) -> optax.Schedule:
    """Learning rate of update number `count = 0 .. steps - 1`.

    With `w = round(warmup_fraction * steps)` it is `count / w` of the peak for `count < w` (0 at the first
    update), the peak at `count = w`, and `final_fraction` of the peak at the last update; `constant` stays
    at the peak. `peak`: another one than the config's, perhaps traced.
    """
    peak, final = config.learning_rate if peak is None else peak, config.final_fraction
    warmup = round(config.warmup_fraction * steps)
    rest = max(steps - 1 - warmup, 1)
    falling = {
        "cosine": optax.cosine_decay_schedule(peak, rest, alpha=final),
        "linear": optax.linear_schedule(peak, peak * final, rest),
        "constant": optax.constant_schedule(peak),
    }[config.schedule]
    if not warmup:
        return _promoting(falling)
    return _promoting(optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), falling], [warmup]))


def decay_mask(traits: dict, config: OptimizerConfig) -> dict:
    """Which parameters are decayed, in the structure of `traits`, the `Traits` of each parameter."""

    def decays(of: Traits) -> bool:
        return config.decay_embeddings if of.is_embedding else of.decay or config.decay_all

    return jax.tree.map(decays, traits)


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule, traits: dict) -> optax.GradientTransformation:
    """AdamW: `x -= scale * rate * (adam(clip(g)) + mask * weight_decay * x)` (Loshchilov and Hutter 2019).

    Args:
      config: its constants.
      schedule: learning rate by update number.
      traits: `Traits` of each parameter: whether it decays, and the scale of its learning rate.
    """
    scales = jax.tree.map(lambda of: of.learning_rate_scale, traits)
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity(),
        optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decay_mask(traits, config),
        ),
        optax.stateless(lambda updates, _: jax.tree.map(_scaled, updates, scales)),
    )
    return optax.GradientTransformation(chain.init, _promoting(chain.update))


def _scaled(update: jax.Array, scale: float) -> jax.Array:
    return update if scale == 1 else scale * update


def _promoting(function: Any) -> Any:
    """The function under JAX's usual promotion: optax mixes its int32 counts with floats."""

    def promoting(*args: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args)

    return promoting
