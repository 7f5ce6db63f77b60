"""The runs that `benchmarks/sweep_cpu.py` times: 4 rates x 4 seeds of one small model on MQAR.

`jaxzoo train` trains `config` with the flags that `flags` gives; `jaxzoo sweep` makes `experiment`,
at the scale of as many steps.
"""

import dataclasses
import functools

from jaxzoo.mixers import BaseConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sweep import Experiment, Point, Results, Scale, grid
from jaxzoo.sweep.curves import curve
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.utils.figure import Figure, panels

POINTS = {
    "benchmark": grid(learning_rate=(1e-3, 3e-3, 1e-2, 3e-2), seed=(0, 1, 2, 3)),
    "smoke": grid(learning_rate=(3e-3, 1e-2), seed=(0, 1)),
}
STEPS = {"benchmark": 500, "smoke": 20}

_TASK = mqar.paper(length=64, n_pairs=4, vocab_size=1024)

config = RunConfig(
    model=LanguageModelConfig(
        pattern=(BaseConvConfig(n_taps=3), TaylorLinearAttentionConfig(feature_dim=16, init_std=0.1)),
        d_model=64,
        n_layers=2,
        vocab_size=1024,
        max_length=64,
        mlp="none",
    ),
    data=RecallDataConfig(
        train=(Examples(task=_TASK, n_examples=32_000),),
        valid=(Examples(task=_TASK, n_examples=1_000),),
    ),
    optimizer=OptimizerConfig(b2=0.95, decay_embeddings=False),
    train=TrainConfig(eval_every=100, checkpoint_every=0),
)


def flags(scale: str, point: Point) -> list[str]:
    rate, seed = point["learning_rate"], point["seed"]
    return f"--train.steps {STEPS[scale]} --optimizer.learning-rate {rate} --train.seed {seed}".split()


def run(scale: str, point: Point) -> RunConfig:
    rate, seed = point["learning_rate"], point["seed"]
    assert isinstance(rate, float)
    assert isinstance(seed, int)
    return dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, learning_rate=rate),
        train=dataclasses.replace(config.train, seed=seed, steps=STEPS[scale]),
    )


def _scale(name: str) -> Scale:
    return Scale(about=f"{STEPS[name]} steps.", points=POINTS[name], config=functools.partial(run, name))


def _draw(results: Results) -> Figure:
    figure, ((panel,),) = panels(1, 1, size=(4, 3), title="Runs of one program")
    curve(
        panel,
        results,
        x="learning_rate",
        points=grid(learning_rate=results.values("learning_rate")),
        label="",
        series=0,
    )
    return figure


experiment = Experiment(
    title="Runs of one program",
    about="",
    scales={name: functools.partial(_scale, name) for name in STEPS},
    claims=(),
    made_up=lambda _: 1.0,
    draw=_draw,
)
