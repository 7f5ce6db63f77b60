"""`--profile`: a trace that Perfetto opens, of the steps that were named, and refusals in one line."""

import gzip
import json

import pytest

from jaxzoo.train.profiling import parse_steps


def steps_in(file):
    """Numbers of the steps of ours in a trace."""
    with gzip.open(file, "rt") as text:
        events = json.load(text)["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if event.get("name") == "train")


def test_trace_of_two_steps(mqar_file, run, rows, tmp_path, capsys):
    """Kills: a file that is no trace, a step too many or too few, a run that is refused for its own trace, one that
    learns something else, and one that --overwrite leaves behind."""
    quick = ("--train.steps", "4", "--train.eval-every", "0", "--train.checkpoint-every", "0")
    assert run(mqar_file, "r", *quick, "--profile", "2:4") == 0
    said = capsys.readouterr().out
    (file,) = (tmp_path / "r" / "profile").rglob("perfetto_trace.json.gz")
    assert f"trace of steps 2 to 3: {file}; open it at https://ui.perfetto.dev" in said
    assert steps_in(file) == [2, 3]
    speeds = [json.loads(line) for line in (tmp_path / "r" / "speed.jsonl").read_text().splitlines()]
    assert [row["step"] for row in speeds] == [1, 2, 3, 4]
    assert all(row["examples_per_second"] > 0 for row in speeds)
    traced = rows("r")
    assert not any("per_second" in name for row in traced for name in row)
    assert run(mqar_file, "r", *quick, "--resume", "--profile", "4:5") == 2
    assert capsys.readouterr().err == "error: --profile 4:5 must name steps after 4, from where the run goes on\n"
    assert run(mqar_file, "r", *quick, "--overwrite", "--train.stop-at-accuracy", "0") == 0
    assert not (tmp_path / "r" / "profile").exists()
    assert rows("r") == traced


@pytest.mark.parametrize("text", ["3", "3:", ":3", "a:b", "-1:2", "1.5:2", "², :3", "1:2:3"])
def test_what_is_no_range_is_refused(text):
    """Kills: a traceback of int()."""
    with pytest.raises(ValueError, match="must be START:STOP, such as 10:13"):
        parse_steps(text, 9)


@pytest.mark.parametrize("text", ["0:2", "3:3", "4:3", "9:11"])
def test_steps_that_are_not_there_are_refused(text):
    """Kills: a run that ends without the trace that was asked for."""
    with pytest.raises(ValueError, match=rf"^--profile {text} must name steps from 1 to 9, with START before STOP$"):
        parse_steps(text, 9)
    assert parse_steps("9:10", 9) == range(9, 10)
