"""The experiment of docs/sweeps.md. Kills: an example that fails."""

import re
from pathlib import Path

from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.sweep.claims import judge
from jaxzoo.sweep.results import Results

PAGE = Path(__file__).parents[2] / "docs/sweeps.md"


def test_the_experiment_of_the_page(tmp_path):
    """Kills: an example that a reader cannot run."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "ours.py").write_text(code)
    sweep = open_sweep(tmp_path / "ours.py", "laptop", tmp_path / "out")
    assert len(sweep.specs) == 12
    assert len({task.program for task in sweep.specs}) == 6
    experiment = sweep.experiment
    rows = experiment.made_up_rows(sweep.scale)
    assert experiment.complaints(sweep.scale) == []
    assert [judge(claim, Results(rows)).verdict for claim in experiment.claims] == ["held"]
    assert [judge(claim, Results([])).verdict for claim in experiment.claims] == ["not tested"]
    assert [line.get_label() for line in experiment.draw(Results(rows)).axes[0].lines] == ["attention", "Hyena"]
