"""The rules that a row must follow, and the page of rows."""

import copy
import dataclasses
import json

import pytest

from jaxzoo.bench.page import frontier, write_page
from jaxzoo.bench.protocol import TASKS, V1
from jaxzoo.bench.rows import BenchRow, Cell, MadeBy, Run, read_row, read_rows, write_row
from jaxzoo.utils.checksums import add_checksum, without_checksum

QUICK, SLOW = 3e-3, 2e-2
"""Best rate, and another one."""


def made_up_run(task, *, rate=QUICK, seed=0, steps=V1.steps, accuracy=0.5, loss=1.0, half_loss=2.0):
    accuracies = {} if loss is None else {str(n): accuracy for n in V1.asked(task)}
    half_loss = loss if steps <= V1.half else half_loss
    return Run(learning_rate=rate, seed=seed, steps=steps, half_loss=half_loss, loss=loss, accuracy=accuracies)


def made_up_row(name="mine", accuracy=0.5, sizes=V1.sizes, mixer=None):
    """A row of a mixer with this accuracy; the first seed of `overwrite` has diverged, all of `track` are solved."""
    cells = []
    for task, size in V1.cells(sizes):
        changes = {"track": {"accuracy": 1.0, "steps": 250}}.get(task, {"accuracy": accuracy})
        runs = [made_up_run(task, seed=seed, **changes) for seed in V1.seeds]
        if task == "overwrite":
            runs[0] = made_up_run(task, steps=500, loss=None)
        slower = [rate for rate in V1.rates if rate != QUICK and task == "capacity"]
        dropped = [
            made_up_run(task, rate=rate, seed=seed, steps=V1.half, loss=3.0) for rate in slower for seed in (0, 1)
        ]
        facts = {"state_bytes": size + 40, "n_parameters": 9, "mixer": mixer or {"n_heads": 1}}
        cells.append(Cell(task=task, size=size, dropped=dropped, runs=runs, **facts))
    facts = {"machine": "a", "versions": {"jax": "0"}, "commit": None, "date": "2026-01-01", "source": "b"}
    made_by = MadeBy(**facts, cpu_seconds=1.0, tokens_per_second=2.0)
    return BenchRow(name=name, protocol=V1.name, digest=V1.digest, grows=False, cells=cells, made_by=made_by)


def test_a_row_is_read_as_it_was_written(tmp_path):
    """Kills: a field that is lost in the file, rows of another protocol among those of this one."""
    row = made_up_row()
    write_row(tmp_path / "mine.json", row)
    assert read_row(tmp_path / "mine.json") == row
    assert read_rows(tmp_path, V1) == [row]
    assert read_rows(tmp_path, dataclasses.replace(V1, name="v0")) == []


def test_a_mixer_with_a_size_of_its_own_enters_once(tmp_path):
    """Kills: a rule that refuses mixers that reach no size of the protocol."""
    write_row(tmp_path / "own.json", made_up_row(sizes=(50_000,)))
    assert [cell.size for cell in read_row(tmp_path / "own.json").of("capacity")] == [50_000]


DAMAGE = [
    ("protocol", "v0", "protocol='v0' must be one of v1, smoke"),
    ("digest", "0", "digest=0 must be"),
    ("grows", 1, "grows=1 must be True or False"),
    ("extra", 1, "BenchRow has no field 'extra'"),
    ("made_by.date", None, "made_by.date=None must be a string"),
    ("made_by.tokens_per_second", 0.0, "made_by.tokens_per_second=0.0 must be positive"),
    ("cells", [], r"sizes=\[\] must be of"),
    ("cells.0.task", "track", "sizes=.* must be of|cells=.* must be"),
    ("cells.0.size", 2048, r"sizes=\[2048, 4096, 16384\] must be of"),
    ("cells.0.state_bytes", 1300, "state_bytes=1300 must be within 20% of size=1024"),
    ("cells.0.mixer", {}, "mixer={} must be a config"),
    ("cells.0.n_parameters", 0, "cells.0.n_parameters=0 must be positive"),
    ("cells.3.size", 1024, "cells=.* must be"),
    ("cells.0.runs.2.seed", 3, "capacity: rates and seeds=.* must be"),
    ("cells.0.runs.2.learning_rate", SLOW, "capacity: rates and seeds=.* must be"),
    ("cells.0.runs.0.steps", 1000, "steps=1000 must be 2000: the run was not solved"),
    ("cells.0.runs.0.steps", 2001, "steps=2001 must be 2000, or a smaller multiple of 250"),
    ("cells.0.runs.0.accuracy", {"4": 0.5}, "accuracy=.* must be of"),
    ("cells.0.runs.0.accuracy.8", 1.5, r"cells.0.runs.0.accuracy.8=1.5 must be in \[0, 1\]"),
    ("cells.0.runs.0.accuracy.8", 0.70001, "accuracy.8=0.70001 must be a share of all answers"),
    ("cells.0.runs.0.loss", None, r"accuracy=.* must be of \(\)"),
    ("cells.0.runs.0.loss", -1.0, "cells.0.runs.0.loss=-1.0 must not be negative"),
    ("cells.3.runs.1.half_loss", None, "half_loss=None must be a number"),
    ("cells.3.runs.0.steps", 260, "steps=260 must be 2000, or a smaller multiple of 250"),
    ("cells.4.runs.0.half_loss", 0.5, "half_loss=0.5 must be loss=1.0"),
    ("cells.4.runs.0.accuracy.128", 0.5, "steps=250 must be 2000: the run was not solved"),
    ("cells.0.dropped.0.half_loss", 2.5, "half_loss=2.5 must be loss=3.0"),
    ("cells.0.dropped.0.seed", 2, "capacity: compared rates and seeds=.* must be"),
    ("cells.2.dropped.5.learning_rate", 4e-2, "capacity: compared rates and seeds=.* must be"),
    ("cells.2.dropped.0.steps", 2000, "steps=2000 must be 1000"),
    ("cells.3.dropped", [dataclasses.asdict(made_up_run("overwrite"))], "overwrite: compared rates .* must be"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGE, ids=[f"{path}={value}" for path, value, _ in DAMAGE])
def test_a_row_that_breaks_the_protocol_is_refused(tmp_path, path, value, message):
    """Kills: a field that no rule reads, so that a row could claim anything; a traceback in place of a line."""
    content = json.loads(json.dumps(dataclasses.asdict(made_up_row())))
    place = content
    *parents, last = path.split(".")
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    place[int(last) if isinstance(place, list) else last] = value
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(add_checksum(content)))
    with pytest.raises(ValueError, match=f"{file}: .*{message}.*; run the mixer again$"):
        read_row(file)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_rate_of_a_size_is_the_best_one(tmp_path, number):
    """Kills: a rate that was chosen by final results, freely, or at another size."""
    row = made_up_row()
    cells = list(row.cells)
    better = {"half_loss": 0.1, "loss": 0.1}
    dropped = [
        dataclasses.replace(run, **better) if run.learning_rate == SLOW else run for run in cells[number].dropped
    ]
    cells[number] = dataclasses.replace(cells[number], dropped=dropped)
    write_row(tmp_path / "mine.json", dataclasses.replace(row, cells=cells))
    with pytest.raises(ValueError, match="capacity: rates and seeds="):
        read_row(tmp_path / "mine.json")


def test_an_edited_row_is_damaged(tmp_path):
    """Kills: a row that was changed by hand."""
    file = tmp_path / "mine.json"
    write_row(file, made_up_row())
    content = copy.deepcopy(json.loads(file.read_text()))
    assert without_checksum(content)
    file.write_text(json.dumps({**content, "name": "yours"}))
    with pytest.raises(ValueError, match="is damaged"):
        read_row(file)


def test_scores():
    """Kills: an area without the corner at 0 pairs, a diverged run that counts as recalled, a run that is solved by one
    slice."""
    half = {str(n): 0.5 for n in V1.pairs}
    assert V1.score("capacity", {str(n): 1.0 for n in V1.pairs}) == 32
    assert V1.score("capacity", half) == 4 * 0.75 + 28 * 0.5
    assert V1.score("capacity", {"4": 1.0, "8": 1.0, "16": 0.0, "32": 0.0}) == 8 + 4
    assert V1.score("track", {"32": 1.0, "128": 0.25}) == 0.25
    assert [V1.score(task, {}) for task in TASKS] == [0, 0, 0]
    assert not V1.is_solved({})
    assert not V1.is_solved({"32": 1.0, "128": 0.9})
    assert V1.is_solved({"32": 1.0, "128": 0.99})


def test_the_page_shows_rows_and_what_is_missing(tmp_path):
    """Kills: a row that is missing from the table, an unreached size that is not mentioned, a score of one seed."""
    rows = [made_up_row("mine"), made_up_row("small", 0.25, sizes=(1024,))]
    write_page(rows, V1, tmp_path, own="mine", not_run=["hyena"])
    text = (tmp_path / "page.md").read_text()
    assert "| mine  |  capacity |        4,136 | 0.003 | 17.00 | 17.00 17.00 17.00 |    0/3 |" in text
    assert "| mine  | overwrite |        4,136 | 0.003 | 13.00 |  0.00 13.00 13.00 |    0/3 |" in text
    assert "| mine  |     track |        4,136 | 0.003 |  1.00 |    1.00 1.00 1.00 |    3/3 |" in text
    assert "small: 4,096, 16,384 bytes not reached within 20%." in text
    assert "Not run yet: hyena." in text
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert frontier([(4, 1.0), (1, 2.0), (2, 1.5), (8, 3.0), (8, 2.5)]) == [(1, 2.0), (8, 3.0)]
