"""Identities of runs. Kills: a result found for another config."""

import dataclasses

from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sweep import Measurement, Scale
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig

DATA = RecallDataConfig(
    train=(Examples(task=mqar.paper(16, 2, vocab_size=32), n_examples=64),),
    valid=(Examples(task=mqar.paper(16, 2, vocab_size=32), n_examples=64),),
)


def config(*, rate: float = 1e-3, seed: int = 0, width: int = 8, steps: int = 5) -> RunConfig:
    model = LanguageModelConfig(pattern=(AttentionConfig(),), d_model=width, vocab_size=32, max_length=16)
    found = RunConfig(model=model, data=DATA)
    return dataclasses.replace(
        found,
        optimizer=dataclasses.replace(found.optimizer, learning_rate=rate),
        train=dataclasses.replace(found.train, seed=seed, steps=steps),
    )


def task(of=config, also=lambda point: {}, **point) -> RunSpec:
    return RunSpec.of(Scale(about="", points=[point], config=lambda point: of(**point), also=also), point)


def test_identity_is_all_that_determines_the_result():
    """Kills: an identity of the coordinates alone, by which a changed config finds an old result."""
    same = {task().id, task(rate=1e-3).id, task(seed=0, rate=1e-3).id}
    others = [task(rate=2e-3).id, task(seed=1).id, task(width=16).id, task(steps=6).id]
    assert len(same) == 1
    assert len(same.union(others)) == 5


def test_identity_holds_what_is_asked_besides():
    """Kills: a result found for a point with other additional evaluations."""
    assert task(also=lambda point: {"longer": config(width=16)}).id != task().id


def test_runs_of_one_program_differ_in_rate_and_seed_alone():
    """Kills: a program that trains runs of other steps or widths as if they were its own."""
    assert task(rate=2e-3, seed=3).program == task().program
    assert task(width=16).program != task().program
    assert task(steps=6).program != task().program
    asked = task(also=lambda point: {"longer": config()})
    assert asked.program != task().program
    assert asked.program == task(also=lambda point: {"longer": config(rate=2e-3, seed=3)}).program


def area(width: float, height: float = 2.0) -> dict[str, float]:
    return {"area": width * height}


def test_identity_of_a_measurement_is_function_and_arguments():
    """Kills: measurements that differ in an argument but share a result; ids that hold the path of an imported file."""

    def measured(**point) -> Measurement:
        return Measurement(area, point)

    first = task(measured, width=3.0)
    assert first.id == task(measured, width=3.0).id
    assert first.id != task(measured, width=4.0).id
    assert first.id != task(measured, width=3.0, height=2.0).id
    assert first.program != task(measured, width=4.0).program
    before = area.__module__
    try:
        area.__module__ = f"{before}_0123456789abcdef"
        assert task(measured, width=3.0).id == first.id
    finally:
        area.__module__ = before
