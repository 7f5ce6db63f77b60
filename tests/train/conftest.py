"""Fixtures of the trainer: tiny experiments as config files, and `train` in the test's process."""

import dataclasses
import gc
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxzoo.cli.train import main
from jaxzoo.mixers import BaseConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.train.metrics import read_rows

CONFIG = """
    import dataclasses
    from jaxzoo.train.config import RunConfig, OptimizerConfig, TrainConfig
    from jaxzoo.data.text_data import TextDataConfig
    from jaxzoo.mixers import BaseConvConfig
    from jaxzoo.models import LanguageModelConfig
    from jaxzoo.tasks.mqar import MQARConfig
    from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

    two = MQARConfig(vocab_size=40, length=16, n_pairs=2)
    three = MQARConfig(vocab_size=40, length=12, n_pairs=3)
    mqar = RecallDataConfig(
        train=(Examples(task=two, n_examples=64),), valid=(Examples(task=two, n_examples=13),)
    )
    mixture = RecallDataConfig(
        train=(*mqar.train, Examples(task=three, n_examples=64)),
        valid=(*mqar.valid, Examples(task=three, n_examples=9)),
    )
    text = TextDataConfig(length=16, valid_tokens=64, valid_fraction=0.3)

    def config():
        return RunConfig(
            model=LanguageModelConfig(
                pattern=(BaseConvConfig(),),
                d_model=8, n_layers=2, vocab_size=257, max_length=16, mlp_width=8, residual_dropout=0.2,
            ),
            data=DATA,
            optimizer=OptimizerConfig(learning_rate=1e-2),
            train=TrainConfig(steps=9, batch_size=8, valid_batch_size=8, log_every=1, eval_every=4,
                              checkpoint_every=3),
        )
"""

OWN_DATA = '''
    import dataclasses
    import jax.numpy as jnp
    import numpy as np
    from jaxzoo.train.config import RunConfig, TrainConfig
    from jaxzoo.data.base import Batch, DataConfig, Score, ValidSet
    from jaxzoo.mixers import BaseConvConfig
    from jaxzoo.models import LanguageModelConfig

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class EchoConfig(DataConfig):
        """Say each token again."""

        length: int = 8
        """Tokens of a row."""

        def build(self, *, batch_size, valid_batch_size):
            return Echo(self.length, batch_size, valid_batch_size)

    class Echo:
        vocab_size, bytes_per_token, packed, summary = 20, None, False, "echo of 20 tokens"

        def __init__(self, length, batch_size, valid_batch_size):
            self.max_length, self.batch_size, self.valid_batch_size, self.step = length, batch_size, valid_batch_size, 0

        def make(self, seed, rows):
            tokens = np.random.default_rng(seed).integers(0, 20, (rows, self.max_length))
            return Batch(tokens=jnp.asarray(tokens, jnp.int32), targets=jnp.asarray(tokens, jnp.int32))

        def __next__(self):
            self.step += 1
            return self.make((0, self.step), self.batch_size)

        def get_state(self):
            return {"step": self.step}

        def set_state(self, state):
            self.step = state["step"]

        def train(self, rows=None):
            return Echo(self.max_length, self.batch_size, self.valid_batch_size)

        def valid(self):
            return [ValidSet({}, 2, lambda i: self.make((1, i), self.valid_batch_size))]

        def manifest(self):
            return {"tokens": list(range(20))}

        def baselines(self):
            return {"chance": Score(3.0, 4.25, 20.0)}

    config = RunConfig(
        model=LanguageModelConfig(pattern=(BaseConvConfig(),), d_model=8, vocab_size=20, max_length=8, mlp="none"),
        data=EchoConfig(),
        train=TrainConfig(steps=9, batch_size=8, valid_batch_size=8, log_every=1, eval_every=4, checkpoint_every=3),
    )
'''


@pytest.fixture(scope="session", autouse=True)
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Compilation cache of the tests, separate from the user's.

    Returns the environment that makes another process compile, and so compute, the very same.
    """
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("xla")),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield {name.upper(): str(value) for name, value in settings.items()}
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def leftovers() -> Iterator[None]:
    """Collects the reads that Orbax leaves unfinished where one has failed: later they would fail another test."""
    yield
    gc.collect()


@pytest.fixture
def mqar_file(tmp_path: Path) -> Path:
    """A config file of a tiny MQAR experiment: a ragged validation set, dropout."""
    file = tmp_path / "configs" / "tiny" / "mqar.py"
    file.parent.mkdir(parents=True)
    file.write_text(textwrap.dedent(CONFIG).replace("DATA", "mqar"))
    return file


@pytest.fixture
def mixture_file(tmp_path: Path) -> Path:
    """Config file of the same experiment with two batch shapes and two validation sets."""
    file = tmp_path / "mixture.py"
    file.write_text(textwrap.dedent(CONFIG).replace("DATA", "mixture"))
    return file


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A config file of a tiny experiment on text."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for i in range(4):
        (corpus / f"{i}.txt").write_text(f"{i} never odd or even, {i} times a word; " * (5 + i))
    file = tmp_path / "text.py"
    text = textwrap.dedent(CONFIG).replace("data=DATA", f"data=dataclasses.replace(text, path={str(corpus)!r})")
    file.write_text(text)
    return file


@pytest.fixture
def own_data_file(tmp_path: Path) -> Path:
    """A config file with data of its own."""
    file = tmp_path / "own_data.py"
    file.write_text(textwrap.dedent(OWN_DATA))
    return file


@pytest.fixture(autouse=True)
def _pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns pictures off, a third of a tiny run's time, except in tests with `pictures` in their name."""
    if "pictures" not in request.node.name:
        monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def _one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_one_device(monkeypatch)


def use_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives runs whose config leaves the mesh open one device: on eight they compile and compute twice as long."""

    def make(config: MeshConfig, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        return make_mesh(config, jax.devices()[:1] if devices is None and config == MeshConfig() else devices)

    monkeypatch.setattr("jaxzoo.train.session.make_mesh", make)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    """Function that runs `jaxzoo.train` in the run directory `name`: `run(file, name, *flags)`."""

    def run(file: Path, name: str, *flags: str) -> int:
        return main(["--config", str(file), "--run-dir", str(tmp_path / name), *flags])

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], list[dict]]:
    """Function that reads the metric rows of a run directory: `rows(name)`."""
    return lambda name: read_rows(tmp_path / name / "metrics.jsonl", whole=True)


@pytest.fixture(scope="session")
def tiny_config() -> RunConfig:
    """Based on tiny MQAR, wide enough for every mesh of 8 devices."""
    task = MQARConfig(vocab_size=40, length=16, n_pairs=2)
    return RunConfig(
        model=LanguageModelConfig(
            pattern=(BaseConvConfig(), TaylorLinearAttentionConfig(n_heads=2, feature_dim=4)),
            d_model=16,
            n_layers=4,
            vocab_size=40,
            max_length=16,
            mlp_width=8,
            residual_dropout=0.1,
        ),
        data=RecallDataConfig(train=(Examples(task=task, n_examples=64),), valid=(Examples(task=task, n_examples=13),)),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_fraction=0.0, schedule="constant"),
        train=TrainConfig(steps=20, batch_size=16, valid_batch_size=8),
    )


@pytest.fixture(scope="session")
def small_config(tiny_config: RunConfig) -> RunConfig:
    """Config with one layer and no dropout, quick to compile."""
    model = dataclasses.replace(
        tiny_config.model, pattern=(BaseConvConfig(),), d_model=8, n_layers=1, mlp="none", residual_dropout=0.0
    )
    return dataclasses.replace(tiny_config, model=model)
