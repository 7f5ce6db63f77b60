"""One update and one validation batch, as pure functions of arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxzoo.array_typing import Array, Bool, Float, Int, PRNGKeyArray
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.mixers.base import Losses
from jaxzoo.models.blueprint import Blueprint, Variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.train.state import TrainState

Metrics = dict[str, Array]


def labelled_logits(
    model: LanguageModel, batch: Batch, key: PRNGKeyArray | None = None
) -> tuple[Float[Array, "b m vocab"], Losses]:
    """Logits for the targets of the batch, and what the mixers add to the training loss.

    Where the batch names `positions`, features are gathered there before the head: the head is most of a
    recall task's work, and answers stand at few positions. Loss and gradients are those of the head at all
    positions with the others unlabelled.
    """
    features, losses = model.features_with_losses(batch.tokens, segment_ids=batch.segment_ids, key=key)
    if batch.positions is not None:
        features = jnp.take_along_axis(features, batch.positions[:, :, None], axis=1)
    return model.logits(features), losses


def cross_entropy(
    logits: Float[Array, "b m vocab"], targets: Int[Array, "b m"]
) -> tuple[Float[Array, "b m"], Bool[Array, "b m"], Bool[Array, "b m"]]:
    """Nats, hits (no token is likelier), and which positions count; the first two are 0 and False elsewhere.

    Args:
      logits: float32.
      targets: ids, or `UNLABELLED`.
    """
    labelled = targets != UNLABELLED
    wanted = jnp.where(labelled, targets, jnp.zeros_like(targets))
    picked = jnp.take_along_axis(logits, wanted[:, :, None], axis=-1)[:, :, 0]
    # optax.softmax_cross_entropy_with_integer_labels keeps this maximum to itself: the hits would need one pass more.
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    nats = jnp.log(jnp.sum(jnp.exp(logits - peak[:, :, None]), axis=-1)) + peak - picked
    hits = labelled & (picked >= peak)  # argmax would cost as much as the head on a CPU
    return jnp.where(labelled, nats, jnp.zeros_like(nats)), hits, labelled


def make_train_step(
    blueprint: Blueprint, optimizer: optax.GradientTransformation, schedule: optax.Schedule
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """`train_step(state, batch) -> (state, metrics)`: one update on the mean loss over labelled positions.

    Metrics are float32 scalars of the parameters before the update: `loss` (what is minimised, nats), `accuracy` over
    labelled positions, `grad_norm` (before clipping), `learning_rate`. Where mixers add to the loss, its parts too:
    `loss/cross_entropy`, and `loss/<term>` for each of theirs.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

        def loss_of(params: dict) -> tuple[Array, Metrics]:
            logits, losses = labelled_logits(blueprint.model(Variables(params, state.buffers)), batch, key)
            nats, hits, labelled = cross_entropy(logits, batch.targets)
            n = jnp.maximum(jnp.sum(labelled, dtype=jnp.float32), 1.0)
            loss, accuracy = jnp.sum(nats) / n, jnp.sum(hits, dtype=jnp.float32) / n
            if not losses:
                return loss, {"accuracy": accuracy}
            parts = {f"loss/{name}": term for name, term in losses.items()}
            return sum(losses.values(), loss), {"accuracy": accuracy, "loss/cross_entropy": loss, **parts}

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
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


class Scores(NamedTuple):
    """Sums over one validation batch, float32 scalars."""

    nats: Float[Array, ""]
    """Loss over labelled positions."""
    labels: Float[Array, ""]
    """Number of labelled positions."""
    accuracy: Float[Array, ""]
    """Share of hits among its labelled positions, over examples."""
    examples: Float[Array, ""]
    """Number of examples with a label."""


def make_eval_step(blueprint: Blueprint) -> Callable[[Variables, Batch], Scores]:
    """`eval_step(variables, batch) -> Scores`, without dropout; rows without labels (padding) do not count."""

    def eval_step(variables: Variables, batch: Batch) -> Scores:
        logits, _ = labelled_logits(blueprint.model(variables), batch)
        nats, hits, labelled = cross_entropy(logits, batch.targets)
        labels = jnp.sum(labelled, axis=1, dtype=jnp.float32)
        accuracy = jnp.sum(hits, axis=1, dtype=jnp.float32) / jnp.maximum(labels, 1.0)
        examples = jnp.sum(labels > 0, dtype=jnp.float32)
        return Scores(jnp.sum(nats), jnp.sum(labels), jnp.sum(accuracy), examples)

    return eval_step


def make_target_nats_step(blueprint: Blueprint) -> Callable[[Variables, Batch], Float[Array, "b m"]]:
    """`target_nats_step(variables, batch) -> nats`, without dropout: `-log p` of each target, float32.

    They are the summands of `Scores.nats`: 0 where the target is `UNLABELLED`.
    """

    def target_nats_step(variables: Variables, batch: Batch) -> Float[Array, "b m"]:
        logits, _ = labelled_logits(blueprint.model(variables), batch)
        nats, _, _ = cross_entropy(logits, batch.targets)
        return nats

    return target_nats_step
