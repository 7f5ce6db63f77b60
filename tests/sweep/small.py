"""A small sweep that trains in seconds: two models, two rates, two seeds."""

import textwrap
from pathlib import Path

from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.sweep import Sweep

FACTS = {
    "id": "0",
    "status": "finished",
    "metrics": {},
    "seconds": 1.0,
    "cpu_seconds": 1.0,
    "machine": "two cores",
    "date": "2026-03-04",
    "commit": None,
    "versions": {"jax": "0.10.2"},
}
"""The fields that every result has."""

EXPERIMENT = """
    import dataclasses

    from jaxzoo.train.config import RunConfig, OptimizerConfig, TrainConfig
    from jaxzoo.mixers import AttentionConfig, BaseConvConfig
    from jaxzoo.models import LanguageModelConfig
    from jaxzoo.sweep import Claim, Experiment, Finding, Measurement, Scale, grid
    from jaxzoo.tasks import mqar
    from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
    from jaxzoo.utils.figure import panels

    STEPS, RATES, SEEDS, MODELS = 6, (1e-3, 1e-2), (0, 1), ("attention", "convolution")
    EVAL_EVERY, CHECKPOINT_EVERY, STOP_AT = 3, 2, 0.0
    EXAMPLES = {"attention": 64, "convolution": 64}
    TASK = mqar.paper(length=16, n_pairs=2, vocab_size=32)
    PATTERNS = {"attention": AttentionConfig(), "convolution": BaseConvConfig(n_taps=3)}

    def config(point):
        return RunConfig(
            model=LanguageModelConfig(
                pattern=(PATTERNS[point["model"]],), d_model=8, n_layers=1, vocab_size=32, max_length=16, mlp="none"
            ),
            data=RecallDataConfig(
                train=(Examples(task=TASK, n_examples=EXAMPLES[point["model"]]),),
                valid=(Examples(task=TASK, n_examples=32),),
            ),
            optimizer=OptimizerConfig(learning_rate=point["learning_rate"]),
            train=TrainConfig(
                steps=STEPS, batch_size=8, valid_batch_size=16, seed=point["seed"],
                eval_every=EVAL_EVERY, checkpoint_every=CHECKPOINT_EVERY, stop_at_accuracy=STOP_AT, log_every=1,
            ),
        )

    def scale():
        return Scale(
            about="Small.", points=grid(model=MODELS, learning_rate=RATES, seed=SEEDS), config=config
        )

    def draw(results):
        return panels(1, 1, size=(2, 2), title="small")[0]

    experiment = Experiment(
        title="Small", about="", scales={"laptop": scale}, claims=(), made_up=lambda point: 0.5, draw=draw
    )
"""


def write_experiment(folder: Path, **values: str) -> Path:
    """Writes the experiment file, with `NAME = ...` lines replaced."""
    lines = textwrap.dedent(EXPERIMENT).split("\n")
    at = lines.index("TASK = mqar.paper(length=16, n_pairs=2, vocab_size=32)")
    lines[at + 1 : at + 1] = [f"{name} = {value}" for name, value in values.items()]
    file = folder / "small.py"
    file.write_text("\n".join(lines))
    return file


def open_small(folder: Path, **values: str) -> Sweep:
    """Opens the sweep in the directory `out` of the folder."""
    file = write_experiment(folder, **values)
    sweep = open_sweep(file, "laptop", folder / "out")
    sweep.directory.create(About(str(file), "laptop"))
    return sweep
