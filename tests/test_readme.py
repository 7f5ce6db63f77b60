"""Commands and code of the README run."""

import re
from pathlib import Path

import numpy as np

from jaxzoo.mixers import MIXERS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_code_blocks_run_and_their_comments_are_true():
    """Kills: an example that does not follow a changed interface."""
    first, streaming = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(first, names)
    assert names["y"].shape == (2, 100, 64)
    exec(streaming, names := {})
    assert names["y"].shape == (2, 100, 64)
    np.testing.assert_allclose(names["y_head"], names["y"][:, :99], atol=1e-5)
    np.testing.assert_allclose(names["y_last"], names["y"][:, 99], atol=1e-5)


def test_the_number_of_mixers():
    """Kills a number that the registry does not reach."""
    assert len(MIXERS) > int(re.search(r"over (\d+) sequence layers", README)[1])


def test_it_is_short():
    """Kills a README that says everything at once; more belongs to docs/."""
    assert len(README.splitlines()) <= 120


def test_every_file_that_it_names_exists():
    """Kills a link or a command that points nowhere."""
    names = re.findall(r"\b(?:configs|benchmarks|docs|experiments|jaxzoo)/[\w/.-]+\.(?:py|md|png)", README)
    assert len(names) > 5
    missing = [name for name in names if not (Path(__file__).parents[1] / name).exists()]
    assert not missing
