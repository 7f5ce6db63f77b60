"""Optimizers against NumPy in float64. Kills: a wrong update rule, mask or schedule."""

import itertools
import math

import jax
import numpy as np
import optax
import pytest

from jaxzoo.layers.variables import Traits
from jaxzoo.mixers import BaseConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.train.config import OptimizerConfig
from jaxzoo.train.optimizer import decay_mask, is_hidden_matrix, make_optimizer, make_schedule

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


def test_schedule():
    """Kills: off-by-one at the end of warmup or training, warmup not from 0, an ignored final fraction."""
    for schedule, warmup in itertools.product(("cosine", "linear", "constant"), (0.0, 0.3)):
        config = OptimizerConfig(learning_rate=0.5, schedule=schedule, warmup_fraction=warmup, final_fraction=0.25)
        rates = jax.jit(jax.vmap(make_schedule(config, 11)))(np.arange(11))
        np.testing.assert_allclose(rates, [expected_rate(config, 11, n) for n in range(11)], rtol=1e-6)
        assert float(rates[10]) == pytest.approx(0.5 if schedule == "constant" else 0.125)


def test_decay_mask():
    """Kills: a switch that does nothing or moves the other kind."""
    for embeddings, everything in itertools.product((False, True), repeat=2):
        config = OptimizerConfig(decay_embeddings=embeddings, decay_all=everything)
        expected = {"embedding": embeddings, "stacks": {0: {"kernel": True, "bias": everything}}}
        assert decay_mask(TRAITS, config) == expected


MODEL = {
    "embedding": Traits(("vocab", "embed"), is_embedding=True),
    "head": Traits(("vocab", "embed")),
    "stacks": {
        0: {
            "up": Traits(("embed", "mlp"), learning_rate_scale=0.5),
            "down": Traits(("mlp", "embed")),
            "bias": Traits(("mlp",), decay=False),
            "taps": Traits((None, "channels")),
        }
    },
}
SHAPES = {"embedding": (5, 3), "head": (3, 2), "up": (2, 3, 4), "down": (2, 6, 3), "bias": (2, 4), "taps": (2, 3, 4)}
STACKED = {"up", "down", "bias", "taps"}


def tree_of(arrays):
    leaves = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    outside = ("embedding", "head")
    return {k: leaves[k] for k in outside} | {"stacks": {0: {k: v for k, v in leaves.items() if k not in outside}}}


class Adam:
    def __init__(self, b1, b2, eps):
        self.b1, self.b2, self.eps, self.m, self.v = b1, b2, eps, 0.0, 0.0

    def __call__(self, g, x, t):
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        return self.m / (1 - self.b1**t) / (np.sqrt(self.v / (1 - self.b2**t)) + self.eps)


class Lion:
    def __init__(self, b1, b2):
        self.b1, self.b2, self.m = b1, b2, 0.0

    def __call__(self, g, x, t):
        update = np.sign(self.b1 * self.m + (1 - self.b1) * g)
        self.m = self.b2 * self.m + (1 - self.b2) * g
        return update


class Muon:
    """One matrix: its momentum U diag(s) V' becomes U diag(q(s / |s|)) V', q five times a polynomial."""

    def __init__(self):
        self.m = 0.0

    def __call__(self, g, x, t):
        self.m = 0.95 * self.m + 0.05 * g
        ahead = 0.95 * self.m / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
        u, s, v = np.linalg.svd(ahead, full_matrices=False)
        s = s / np.linalg.norm(s)
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        assert 0.6 < s.min() < s.max() < 1.3, "about orthogonal"
        return 0.2 * math.sqrt(max(g.shape)) * (u * s) @ v


class Adafactor:
    """Shazeer and Stern 2018, algorithms 4 and 6, of one array."""

    def __init__(self):
        self.v = self.rows = self.columns = 0.0

    def __call__(self, g, x, t):
        decay = 1 - t**-0.8
        if min(g.shape) >= 128:
            self.rows = decay * self.rows + (1 - decay) * (g**2).sum(1)
            self.columns = decay * self.columns + (1 - decay) * (g**2).sum(0)
            v = np.outer(self.rows, self.columns) / self.rows.sum()
        else:
            v = self.v = decay * self.v + (1 - decay) * g**2
        update = g / np.sqrt(v)
        update = update / max(1.0, np.sqrt((update**2).mean()))
        return update * max(1e-3, np.sqrt((x**2).mean()))


def rule(name, array):
    if name == "muon":
        return Muon() if array in ("up", "down") else Adam(0.8, 0.9, 1e-3)
    return {"adamw": lambda: Adam(0.8, 0.9, 1e-3), "lion": lambda: Lion(0.8, 0.9), "adafactor": Adafactor}[name]()


CONSTANTS = {
    "adamw": {"b1": 0.8, "b2": 0.9, "eps": 1e-3},
    "lion": {"b1": 0.8, "b2": 0.9},
    "muon": {"b1": 0.8, "b2": 0.9, "eps": 1e-3},
    "adafactor": {},
}


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        pytest.param("adamw", 0.0, marks=pytest.mark.full),
        ("adamw", 0.7),
        ("lion", 0.7),
        ("muon", 0.7),
        ("adafactor", 0.7),
    ],
)
def test_three_updates_equal_numpy(name, clip):
    """Kills: decay before the rule or unscaled by the rate, clipping by array, a missing bias correction, a wrong mask,
    a learning rate whose scale is ignored or acts on the gradient (Adam would undo it), a stack of layers taken for one
    matrix, and Muon for tables, heads, biases or filters."""
    config = OptimizerConfig(
        name=name, learning_rate=0.1, warmup_fraction=0.5, weight_decay=0.3, clip_norm=clip, **CONSTANTS[name]
    )
    rng = np.random.default_rng(0)
    shapes = SHAPES | ({"up": (2, 130, 140)} if name == "adafactor" else {})
    x = {k: rng.normal(size=s) for k, s in shapes.items()}
    x["bias"][1] *= 1e-4  # smaller than the least size that Adafactor takes
    gradients = [{k: rng.normal(size=s) for k, s in shapes.items()} for _ in range(3)]
    schedule = make_schedule(config, 6)
    optimizer = make_optimizer(config, schedule, MODEL)
    params = tree_of(x)
    state = jax.jit(optimizer.init)(params)

    @jax.jit
    def update(gradient, state, params):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    rules = {k: [rule(name, k) for _ in range(2 if k in STACKED else 1)] for k in shapes}
    for n, gradient in enumerate(gradients):
        params, state = update(tree_of(gradient), state, params)
        norm = math.sqrt(sum((g**2).sum() for g in gradient.values()))
        scale = min(1.0, clip / norm) if clip else 1.0
        for k, g in gradient.items():
            layers = zip(scale * g, x[k], strict=True) if k in STACKED else [(scale * g, x[k])]
            steps = [each(*layer, n + 1) for each, layer in zip(rules[k], layers, strict=True)]
            step = np.stack(steps) if k in STACKED else steps[0]
            rate = expected_rate(config, 6, n) * (0.5 if k == "up" else 1.0)
            x[k] = x[k] - rate * (step + (0.3 if k != "bias" else 0.0) * x[k])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), params, tree_of(x))


def test_constants_that_the_config_leaves_open():
    """Kills: AdamW's b2 in Lion; a constant that is set and lost, or set next to one that is open."""
    for name, own in (("adamw", (0.9, 0.999)), ("lion", (0.9, 0.99)), ("muon", (0.9, 0.999))):
        assert (*OptimizerConfig(name=name).constants.values(),)[:2] == own
        assert OptimizerConfig(name=name, b2=0.5).constants["b2"] == 0.5
        assert OptimizerConfig(name=name, b2=0.5).constants["b1"] == 0.9


def test_a_constant_that_nobody_reads_is_refused():
    """Kills: an option that is accepted and ignored."""
    for name, field in (("lion", "eps"), ("adafactor", "b1"), ("adafactor", "b2")):
        line = f"^OptimizerConfig.{field}=0.5 is not read by name='{name}'; leave it out$"
        with pytest.raises(ValueError, match=line):
            OptimizerConfig(name=name, **{field: 0.5})


def test_hidden_matrices_of_a_real_model():
    """Kills: Muon for what is a matrix by its rank alone, stacked vectors and filters among them."""
    pattern = (BaseConvConfig(), TaylorLinearAttentionConfig(feature_dim=3))
    model = LanguageModelConfig(
        pattern=pattern, d_model=8, n_layers=4, vocab_size=40, max_length=16, tie_embeddings=False, max_positions=16
    )
    traits = jax.tree.leaves_with_path(make_blueprint(model).traits.params)
    names = {jax.tree_util.keystr(path, simple=True, separator="/").partition("blocks/")[2]: is_hidden_matrix(of)
             for path, of in traits}  # fmt: skip
    mlp = {f"{i}/mlp/{part}_proj/kernel" for i in (0, 1) for part in ("gate", "up", "down")}
    attention = {f"1/mixer/{part}_proj/kernel" for part in "qkv"} | {"1/mixer/out_proj/kernel"}
    assert {name for name, hidden in names.items() if hidden} == mlp | attention | {"0/mixer/projection/kernel"}
