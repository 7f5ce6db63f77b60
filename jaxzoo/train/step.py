"""One update, as a pure function of arrays."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.models.adapters import AdaptedBlueprint
from jaxzoo.models.blueprint import Blueprint, Variables
from jaxzoo.parallel.sharding import constrain
from jaxzoo.train.config import TrainConfig
from jaxzoo.train.loss import sum_of_losses
from jaxzoo.train.state import TrainState
from jaxzoo.utils.array_typing import Array, PRNGKeyArray

Metrics = dict[str, Array]


def make_train_step(
    blueprint: Blueprint | AdaptedBlueprint,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    config: TrainConfig,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Makes `train_step(state, batch) -> (state, metrics)`: one update on the mean loss over labelled positions.

    With `config.accumulate`, parts of the rows are processed in turn and their gradients summed; each part draws its
    own dropout, and additional losses of mixers are averaged over the parts.

    Metrics are float32 scalars before the update: `loss` (nats), `accuracy`, `grad_norm` (before clipping),
    `learning_rate`; with additional losses or a z-loss also `loss/cross_entropy` and `loss/<term>`.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        n = jnp.maximum(jnp.sum(batch.targets != UNLABELLED, dtype=jnp.float32), 1.0)

        def loss_of(params: dict, part: Batch, key: PRNGKeyArray) -> tuple[Array, Metrics]:
            model = blueprint.model(Variables(params, state.buffers))
            loss, totals, losses = sum_of_losses(model, part, key, chunk=config.loss_chunk, z_loss=config.z_loss)
            terms = {name: term / config.accumulate for name, term in losses.items()}
            loss, accuracy = sum(terms.values(), loss / n), totals.hits / n
            if config.z_loss:
                terms["z"] = config.z_loss * totals.squares / n
            if not terms:
                return loss, {"accuracy": accuracy}
            parts = {f"loss/{name}": term for name, term in terms.items()}
            return loss, {"accuracy": accuracy, "loss/cross_entropy": totals.nats / n, **parts}

        (loss, others), gradients = _accumulated(
            jax.value_and_grad(loss_of, has_aux=True), state.params, batch, key, config.accumulate
        )
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": loss,
            **others,
            "grad_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
        }
        return state._replace(params=params, opt_state=opt_state, step=state.step + 1), metrics

    return train_step


def _accumulated(function: Callable, params: dict, batch: Batch, key: PRNGKeyArray, n_parts: int) -> Any:
    """Sums `function(params, part, key)` over parts of every n-th row, so that rows stay on their devices."""
    if n_parts == 1:
        return function(params, batch, key)
    parts = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, n_parts, *x.shape[1:]), 0, 1), batch)
    keys = jax.random.split(key, n_parts)

    def add(total: Any, part_and_key: tuple[Batch, PRNGKeyArray]) -> tuple[Any, None]:
        part, part_key = part_and_key
        part = jax.tree.map(lambda x: constrain(x, "batch", *(None,) * (x.ndim - 1)), part)
        return jax.tree.map(jnp.add, total, function(params, part, part_key)), None

    shapes = jax.eval_shape(function, params, jax.tree.map(lambda x: x[0], parts), key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, (parts, keys))[0]
