"""Stage 1: every new mixer learns the outputs of the attention that it replaces, from the same inputs.

    loss = mean over layers of |mixer(x) - attention(x)|^2 / |attention(x)|^2

with x the inputs of that layer in the old model, which does not change: layers are independent, and all learn in one
step (attention transfer of LoLCATs, arXiv 2410.10254). Deviations: the error of a layer is relative to the size of
its outputs; and all parameters of a new mixer learn, while LoLCATs trains only the feature maps.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxzoo.config.checked import Checked, NonNegativeInt, PositiveFloat
from jaxzoo.data.base import Batch, Stream
from jaxzoo.inspection.capture import capture
from jaxzoo.interop.mapping import slots
from jaxzoo.linearization.conversion import layer_of_mixer
from jaxzoo.mixers import Context
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint, names_of
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.config import OptimizerConfig
from jaxzoo.train.loop import Hook, NonFiniteError, SingleRun, StepInfo, TrainingRun, run_loop
from jaxzoo.train.optimizer import make_optimizer, make_schedule
from jaxzoo.utils.array_typing import Array, Float

Trained = dict[str, Array]
"""Trained parameters by name, such as `stacks/0/blocks/1/mixer/q_map`."""
LAST = 0.1
"""Share of the steps, at the end, over which the reported errors are averaged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig(Checked):
    """Settings of the transfer."""

    tokens: NonNegativeInt = 20_000_000
    """Tokens to learn from, in whole batches; 0: the stage is left out."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate of AdamW."""


class Transferred(NamedTuple):
    """The model after the stage."""

    variables: Variables
    first_errors: tuple[float, ...]
    """Relative squared error of each layer in the first step."""
    last_errors: tuple[float, ...]
    """Relative squared error of each layer, averaged over the last steps."""


def transfer(
    teacher: tuple[LanguageModelConfig, Variables],
    student: tuple[LanguageModelConfig, Variables],
    layers: Sequence[int],
    batches: Stream,
    config: TransferConfig,
    *,
    report: Callable[[int, int, Sequence[float]], None] = lambda *_: None,
) -> Transferred:
    """Trains the new mixers; all other variables of the student stay unchanged.

    Args:
      teacher, student: the old model, and the new one of `convert`.
      layers: indices of the layers with new mixers.
      batches: endless training batches of one shape.
      config: settings of the optimizer.
      report: called with step, number of steps and errors by layer after each step.

    Raises:
      ValueError: an error is not finite.
    """
    blueprint = make_blueprint(student[0])
    names, places = names_of(student[1].params), slots(student[0], blueprint)
    paths = {place.path for name, place in places.items() if layer_of_mixer(name) in layers}
    trained = {path: names[path] for path in paths}
    first = next(batches)
    steps = max(1, math.ceil(config.tokens / first.tokens.size))
    settings = OptimizerConfig(  # no clipping: the global norm would couple the layers
        learning_rate=config.learning_rate, weight_decay=0.0, clip_norm=0.0, b2=0.95, final_fraction=0.1
    )
    traits = {path: names_of(blueprint.traits.params)[path] for path in paths}
    optimizer = make_optimizer(settings, make_schedule(settings, steps), traits)
    before = make_blueprint(teacher[0])

    @jax.jit
    def update(trained: Trained, moments: optax.OptState, old: Variables, new: Variables, batch: Batch):
        def loss(trained: Trained) -> tuple[Array, Array]:
            errors = _errors(before, old, blueprint, with_trained(new, trained), layers, batch)
            return errors.mean(), errors

        gradient, errors = jax.grad(loss, has_aux=True)(trained)
        updates, moments = optimizer.update(gradient, moments, trained)
        return (optax.apply_updates(trained, updates), moments), {f"{i:04}": errors[i] for i in range(len(layers))}

    seen: list[tuple[float, ...]] = []

    def record(info: StepInfo) -> None:
        assert info.metrics is not None
        errors = tuple(info.metrics().values())
        if not all(map(math.isfinite, errors)):
            raise NonFiniteError("the error is not finite", info.step)
        seen.append(errors)
        report(info.step, steps, errors)

    run = TrainingRun([Hook(record, needs_state=False)], steps=steps)
    single = SingleRun(
        lambda state, batch: update(*state, teacher[1], student[1], batch), (trained, optimizer.init(trained))
    )
    for _ in run_loop(single, _with_first(first, batches), [run]):
        pass
    if run.failure:
        raise ValueError(f"transfer: {run.failure}; lower --transfer.learning-rate")
    trained, _ = single.state(0)
    last = seen[-max(1, round(LAST * steps)) :]
    means = tuple(sum(column) / len(last) for column in zip(*last, strict=True))
    return Transferred(with_trained(student[1], trained), seen[0], means)


def _with_first(first: Batch, others: Stream) -> Iterator[Batch]:
    yield first
    while True:
        yield next(others)


def with_trained(variables: Variables, trained: Trained) -> Variables:
    """The variables with new values of the trained ones."""
    leaves = {**names_of(variables.params), **trained}
    params = jax.tree.unflatten(jax.tree.structure(variables.params), [leaves[n] for n in names_of(variables.params)])
    return Variables(params, variables.buffers)


def _errors(
    before: Blueprint, old: Variables, after: Blueprint, new: Variables, layers: Sequence[int], batch: Batch
) -> Float[Array, "n"]:
    """Relative squared error of each layer, without gradients of the old model."""
    names = [f"layers.{i}.mixer.{end}" for i in layers for end in ("in", "out")]
    _, seen = capture(before.model(old), *names)(batch.tokens, segment_ids=batch.segment_ids)
    stacks, context = after.model(new).unstacked().stacks, Context(tokens=batch.tokens, segment_ids=batch.segment_ids)

    def error(i: int) -> Array:
        x, wanted = (jax.lax.stop_gradient(seen[f"layers.{i}.mixer.{end}"]) for end in ("in", "out"))
        y, wanted = stacks[i].blocks[0].mixer(x, context).astype(jnp.float32), wanted.astype(jnp.float32)
        return jnp.square(y - wanted).mean() / jnp.square(wanted).mean()

    return jnp.stack([error(i) for i in layers])
