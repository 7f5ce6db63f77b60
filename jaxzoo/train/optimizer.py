"""Optimizers from optax's parts: schedule, clipping, the rule by name, and the traits of each parameter."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxzoo.layers.variables import Traits
from jaxzoo.train.config import OptimizerConfig
from jaxzoo.utils.array_typing import Array, Float

HIDDEN_AXES = frozenset({"embed", "heads", "mlp", "channels"})
"""Logical axes between which a hidden matrix maps."""

MUON_RMS = 0.2
"""Root mean square of Muon's update before the learning rate: about AdamW's (Liu et al. 2025, arXiv 2502.16982)."""

ADAFACTOR_CLIP = 1.0
"""Largest root mean square of Adafactor's update (Shazeer and Stern 2018, sec. 6)."""

ADAFACTOR_SMALLEST = 1e-3
"""Lower bound of a parameter's root mean square in Adafactor (ibid., sec. 8)."""


def make_schedule(
    config: OptimizerConfig, steps: int, *, peak: Float[Array, ""] | float | None = None
) -> optax.Schedule:
    """Learning rate of update number `count = 0 .. steps - 1`.

    With `w = round(warmup_fraction * steps)`: `count / w` of the peak for `count < w`, the peak at `count = w`, and
    `final_fraction` of the peak at the last update. `peak`, perhaps traced, replaces that of the config.
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


def decay_mask(traits: dict[str, Any], config: OptimizerConfig) -> dict[str, Any]:
    """Mask of the parameters with weight decay, in the structure of `traits`, the `Traits` of each parameter."""
    return jax.tree.map(lambda of: of.decays(embeddings=config.decay_embeddings, everything=config.decay_all), traits)


def is_hidden_matrix(traits: Traits) -> bool:
    """Whether it maps one width of the model to another: no table, head, filter, norm, bias or bottleneck."""
    return traits.decay and not traits.is_embedding and len(traits.axes) == 2 and HIDDEN_AXES.issuperset(traits.axes)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, traits: dict[str, Any]
) -> optax.GradientTransformation:
    """`x -= scale * rate * (rule(clip(g)) + mask * weight_decay * x)`, as in AdamW (Loshchilov and Hutter 2019).

    The rules are optax's:

    - adamw: Adam.
    - lion: the sign of a mean of gradients (Chen et al. 2023).
    - muon: for hidden matrices (`is_hidden_matrix`) momentum of 0.95, orthogonalized by Newton-Schulz iterations, times
      `0.2 sqrt(max(n_in, n_out))`, so that AdamW's learning rate and decay fit (Liu et al. 2025); Adam for all others.
    - adafactor: second moments of matrices of at least 128 x 128 by rows and columns, no first moment, updates clipped
      and scaled to the size of the parameter (Shazeer and Stern 2018). Deviation from optax: decay is scaled by the
      learning rate, as in the other rules.

    Each matrix of a stack of layers is treated separately (except that Adafactor factors a stack of at least 128 layers
    along the layers if they are narrower than 128).

    Args:
      schedule: learning rate by update number.
      traits: `Traits` of each parameter: decay, scale of the learning rate, logical axes.
    """
    rules: dict[str, Callable[..., optax.GradientTransformation]] = {
        "adamw": optax.scale_by_adam,
        "lion": optax.scale_by_lion,
        "muon": lambda **of_adam: _muon(traits, optax.scale_by_adam(**of_adam)),
        "adafactor": lambda: _adafactor(traits),
    }
    scales = jax.tree.map(lambda of: of.learning_rate_scale, traits)
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity(),
        optax.chain(
            rules[config.name](**config.constants),
            optax.add_decayed_weights(config.weight_decay, decay_mask(traits, config)),
            optax.scale_by_learning_rate(schedule),
        ),
        optax.stateless(
            lambda updates, _: jax.tree.map(lambda x, scale: x if scale == 1 else scale * x, updates, scales)
        ),
    )
    return optax.GradientTransformation(chain.init, _promoting(chain.update))


def _muon(traits: dict, others: optax.GradientTransformation) -> optax.GradientTransformation:
    """Muon for hidden matrices, which are the two last axes of an array, `others` for all else."""

    def sides(arrays: Any) -> Any:
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), arrays)

    def scaled(update: Array) -> Array:
        return MUON_RMS * max(update.shape[-2:]) ** 0.5 * update

    orthogonal = optax.chain(
        optax.contrib.scale_by_muon(weight_dimension_numbers=sides),
        optax.stateless(lambda updates, _: jax.tree.map(scaled, updates)),
    )
    labels = jax.tree.map(lambda of: "muon" if is_hidden_matrix(of) else "others", traits)
    return optax.partition({"muon": orthogonal, "others": others}, labels)


def _adafactor(traits: dict) -> optax.GradientTransformation:
    def finish(update: Array, param: Array, of: Traits) -> Array:
        clipped = update / jnp.maximum(1.0, _rms(update, of) / ADAFACTOR_CLIP)
        return clipped * jnp.maximum(_rms(param, of), ADAFACTOR_SMALLEST)

    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.stateless(lambda updates, params: jax.tree.map(finish, updates, params, traits)),
    )


def _rms(x: Array, traits: Traits) -> Array:
    """Root mean square of each array of a stack, its axes kept."""
    axes = tuple(range(x.ndim - len(traits.axes), x.ndim))
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True))


def _promoting(function: Any) -> Any:
    """Wraps a function in JAX's standard dtype promotion: optax mixes int32 counts with floats."""

    def promoting(*args: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args)

    return promoting
