"""The optimizer against AdamW written out in float64 numpy."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxzoo.config import OptimizerConfig
from jaxzoo.layers.variables import Traits
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.train.optimizer import decay_mask, make_optimizer, make_schedule

TRAITS = {
    "embedding": Traits(("vocab", "embed"), is_embedding=True),
    "stacks": {0: {"kernel": Traits(("embed", "mlp"), learning_rate_scale=0.5), "bias": Traits(("mlp",), decay=False)}},
}


def expected_rate(config: OptimizerConfig, steps: int, count: int) -> float:
    warmup = round(config.warmup_fraction * steps)
    if count < warmup:
        return config.learning_rate * count / warmup
    done = (count - warmup) / (steps - 1 - warmup)
    left = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "constant": 1.0}[config.schedule]
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * left)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.3])
def test_schedule(schedule, warmup):
    """Kills: off-by-one at the end of warmup or training, warmup not from 0, an ignored final fraction."""
    config = OptimizerConfig(learning_rate=0.5, schedule=schedule, warmup_fraction=warmup, final_fraction=0.25)
    rate = make_schedule(config, 11)
    np.testing.assert_allclose(
        [float(rate(n)) for n in range(11)], [expected_rate(config, 11, n) for n in range(11)], rtol=1e-6
    )
    assert float(rate(10)) == pytest.approx(0.5 if schedule == "constant" else 0.125)


def test_schedule_of_one_step_is_the_peak():
    """Kills: a division by zero where no step is left after the warmup."""
    assert float(make_schedule(OptimizerConfig(learning_rate=0.5, warmup_fraction=0.0), 1)(0)) == 0.5


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_decay_mask(embeddings, everything):
    """Kills: a switch that does nothing or moves the other kind."""
    config = OptimizerConfig(decay_embeddings=embeddings, decay_all=everything)
    expected = {"embedding": embeddings, "stacks": {0: {"kernel": True, "bias": everything}}}
    assert decay_mask(TRAITS, config) == expected


def test_mask_of_a_real_model_leaves_stacked_norms_alone(tiny_config):
    """Kills: telling vectors by the rank of the array, which is 2 in a scanned stack."""
    model = dataclasses.replace(tiny_config.model, n_layers=4)
    blueprint = make_blueprint(model)
    mask = decay_mask(blueprint.traits.params, OptimizerConfig(decay_embeddings=False))
    stack, shapes = mask["stacks"][0]["blocks"][0], blueprint.shapes.params["stacks"][0]["blocks"][0]
    assert shapes["mixer_norm"]["scale"].ndim == 2
    assert not stack["mixer_norm"]["scale"]
    assert not mask["embedding"]
    assert not any(shapes["mlp"][name].get("bias") for name in stack["mlp"])
    assert all(part["kernel"] for part in stack["mlp"].values())


@pytest.mark.parametrize("clip", [0.0, 0.7])
def test_three_updates_equal_numpy(clip):
    """Kills: decay before Adam or unscaled by the rate, clipping by array, bias correction, wrong mask, a learning rate
    whose scale is ignored or acts on the gradient (Adam would undo it)."""
    config = OptimizerConfig(
        learning_rate=0.1, warmup_fraction=0.5, b1=0.8, b2=0.9, eps=1e-3, weight_decay=0.3, clip_norm=clip
    )
    rng = np.random.default_rng(0)
    shapes = {"embedding": (5, 3), "kernel": (2, 3, 4), "bias": (2, 4)}
    x = {k: rng.normal(size=s) for k, s in shapes.items()}
    gradients = [{k: rng.normal(size=s) for k, s in shapes.items()} for _ in range(3)]

    def tree(arrays):
        leaves = {k: jnp.asarray(v, jnp.float32) for k, v in arrays.items()}
        return {
            "embedding": leaves["embedding"],
            "stacks": {0: {"kernel": leaves["kernel"], "bias": leaves["bias"]}},
        }

    schedule = make_schedule(config, 6)
    optimizer = make_optimizer(config, schedule, TRAITS)
    params = tree(x)
    state = optimizer.init(params)
    m, v = ({k: np.zeros(s) for k, s in shapes.items()} for _ in range(2))
    for n, gradient in enumerate(gradients):
        updates, state = optimizer.update(tree(gradient), state, params)
        params = optax.apply_updates(params, updates)
        norm = math.sqrt(sum((g**2).sum() for g in gradient.values()))
        scale = min(1.0, clip / norm) if clip else 1.0
        for k, g in gradient.items():
            m[k] = 0.8 * m[k] + 0.2 * scale * g
            v[k] = 0.9 * v[k] + 0.1 * (scale * g) ** 2
            adam = m[k] / (1 - 0.8 ** (n + 1)) / (np.sqrt(v[k] / (1 - 0.9 ** (n + 1))) + 1e-3)
            rate = expected_rate(config, 6, n) * (0.5 if k == "kernel" else 1.0)
            x[k] = x[k] - rate * (adam + (0.3 if k != "bias" else 0.0) * x[k])
    expected = tree(x)
    np.testing.assert_allclose(params["embedding"], expected["embedding"], rtol=1e-5, atol=1e-6)
    for k in ("kernel", "bias"):
        np.testing.assert_allclose(params["stacks"][0][k], expected["stacks"][0][k], rtol=1e-5, atol=1e-6)
