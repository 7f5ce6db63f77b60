"""configs/lm against the papers' tables. Kills: another preset, schedule or optimizer."""

import dataclasses
import functools
import importlib.util
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.cli.config_file import load_config
from jaxzoo.data.base import Batch
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.models.language_model import LanguageModelConfig
from jaxzoo.parallel.sharding import RULES, MeshConfig, make_mesh
from jaxzoo.train.optimizer import make_optimizer, make_schedule
from jaxzoo.train.state import init_state, state_shardings
from jaxzoo.train.step import make_train_step
from tests.configs.papers import ROWS
from tests.pallas_kernels.shared import full, slow

FOLDER = Path(__file__).parents[2] / "configs" / "lm"


def file_of(name):
    return FOLDER / f"{ROWS[name].settings.paper.lower()}.py"


@functools.cache
def load(name):
    return load_config(file_of(name), name=name)


def test_every_row_has_a_name():
    """Kills: a row that is left out, a name that no paper has, and a file that shares a name with another one."""
    names = {file: [*load_file(file).configs] for file in sorted({file_of(name) for name in ROWS})}
    assert {file: [name for name in ROWS if file_of(name) == file] for file in names} == {
        file: sorted(found, key=[*ROWS].index) for file, found in names.items()
    }


def load_file(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_against_the_tables():
    """Kills: the preset of another row, an argument that is left out, another table's schedule, steps that do not come
    to the row's tokens, and a list of configs that tells another total or table."""
    listed = (FOLDER.parent / "README.md").read_text()
    for name, row in ROWS.items():
        config = load(name)
        assert config.model == row.model, name
        assert config.model.dtype == "bfloat16"
        assert config.mesh == (MeshConfig(data=1, fsdp=-1) if row.is_large else MeshConfig())
        tokens = config.train.steps * config.train.batch_size * config.data.length
        assert (config.train.batch_size, config.data.length, config.model.max_length) == (256, 2048, 2048)
        # 20,000 steps, the printed number, are 5 % more than the 10B tokens that the papers round them to.
        assert row.billions <= tokens / 1e9 * (1 + 1e-4) <= 1.05 * row.billions, name
        (line,) = re.findall(rf"^\| `{name}` \|.*$", listed, re.MULTILINE)
        assert f"| {row.billions}B |" in line
        unprinted = name in ("pythia_356m", "zoology_liquid_s4_145m") or row.settings.paper == "CAT"
        assert unprinted or f"| {row.settings.table} |" in line, name
        corpora = {"the Pile": "corpora/pile_tokens", "SlimPajama": "corpora/slimpajama_tokens"}
        assert corpora[row.text] == config.data.path


def test_optimizer_against_the_tables():
    """Kills: another table's rates, moments or decay, and a final rate given as a share of the wrong peak."""
    for name in ROWS:
        row, config = ROWS[name], load(name)
        settings, optimizer, steps = row.settings, config.optimizer, config.train.steps
        warmup = round(steps * 0.01) if row.text == "the Pile" else 954  # 0.5B tokens over 524,288 a step
        rate = make_schedule(optimizer, steps)
        rates = [float(rate(count)) for count in (warmup // 2, warmup, steps - 1)]
        assert rates == pytest.approx([settings.base * (warmup // 2) / warmup, settings.base, settings.least], rel=1e-5)
        middle = float(rate((warmup + steps - 1) // 2))
        assert middle == pytest.approx((settings.base + settings.least) / 2, rel=2e-3)
        quarter = (3 * settings.base + settings.least) / 4 - float(rate(warmup + (steps - 1 - warmup) // 4))
        assert (quarter < -0.05 * settings.base) == (settings.schedule == "cosine")
        moments = (*optimizer.constants.values(), optimizer.weight_decay, optimizer.clip_norm)
        assert moments == (0.9, settings.b2, 1e-8, settings.weight_decay, 1.0)
        assert optimizer.decay_embeddings == row.decays_embedding


def cut(model: LanguageModelConfig) -> LanguageModelConfig:
    """Model cut after the first layer of its last kind, which is quicker to trace."""
    kinds = [type(layer) for layer in model.layers]
    last = max(kinds.index(kind) for kind in kinds)
    return dataclasses.replace(model, n_layers=min(last + 2, model.n_layers))


@functools.cache
def traced(model: LanguageModelConfig, name: str):
    """(state before, function that traces a step, function that lowers it), of the config `name` with this model, on 8
    devices."""
    config = load(name)
    mesh = make_mesh(config.mesh, jax.devices("cpu"))
    blueprint = make_blueprint(model)
    schedule = make_schedule(config.optimizer, config.train.steps)
    optimizer = make_optimizer(config.optimizer, schedule, blueprint.traits.params)
    with jax.set_mesh(mesh):
        key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        shapes = jax.eval_shape(lambda key: init_state(model, optimizer, key), key)
        places = state_shardings(blueprint, shapes, mesh)
        state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, places)
        rows = NamedSharding(mesh, PartitionSpec(RULES["batch"]))
        tokens = jax.ShapeDtypeStruct((config.train.batch_size, config.data.length), jnp.int32, sharding=rows)
        batch = Batch(tokens=tokens, targets=tokens)
        step = jax.jit(
            make_train_step(blueprint, optimizer, schedule, config.train),
            donate_argnums=0,
            in_shardings=(places, rows),
            out_shardings=(places, NamedSharding(mesh, PartitionSpec())),
        )

    def after():
        with jax.set_mesh(mesh):
            return jax.eval_shape(step, state, batch)

    return state, after, lambda: step.lower(state, batch)


def first_of(name: str) -> str:
    """First row with the same model, mesh and data; their steps differ in constants alone."""
    config = load(name)
    same = (n for n in ROWS if load(n).model == config.model and load(n).mesh == config.mesh)
    return next(same)


def is_step(before, after) -> bool:
    """Whether `after` has shapes and dtypes of `before`, and metrics are numbers."""
    state, metrics = after
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (before, state)]
    numbers = {name: (x.shape, x.dtype) for name, x in metrics.items()}
    return shapes[0] == shapes[1] and numbers == dict.fromkeys(numbers, ((), jnp.float32)) and "loss" in numbers


FULL = ("zoology_base_conv_attention_166m", "based_360m")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name in FULL else pytest.mark.slow) for name in ROWS],
)
def test_one_sharded_step(name):
    """Kills: a row that cannot be trained: a batch that the mesh cannot share out, a mixer that fails at its width, in
    its dtype, under the mesh or backwards, and a state that changes its shapes."""
    before, after, _ = traced(cut(load(name).model), first_of(name))
    assert is_step(before, after())


LARGE = [name for name, row in ROWS.items() if row.is_large]


@pytest.mark.parametrize("name", [full(name) if name in ("based_1_3b", "mamba_1_3b") else slow(name) for name in LARGE])
def test_large_models_are_shared_out(name):
    """Kills: a large model that every device holds in full, and parameters or moments whose axes leave them whole."""
    state = traced(cut(load(name).model), first_of(name))[0]
    whole = sum(x.size for x in jax.tree.leaves(state))
    held = sum(math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(state))
    assert held < whole / 4  # an 8th, but for filters and Mamba's small projections, which have channels alone
