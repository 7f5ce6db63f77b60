"""Processes of one run that were started with different settings, code or data."""

import pytest

from jaxzoo.train import checks
from jaxzoo.train.checks import check_same_everywhere, code_digest
from tests.parallel.launch import Launched, free_port
from tests.parallel.test_train import MESH, config  # noqa: F401 a fixture


@pytest.mark.parametrize(
    ("here", "field"),
    [
        ({"config": {"train": {"seed": 1}}}, r"config\.train\.seed: process 1 has 1, process 0 has 0"),
        ({"code": "b"}, "code: process 1 has 'b', process 0 has 'a'"),
        ({"data": {"valid": "c"}}, r"data\.valid: process 1 has 'c', process 0 has None"),
    ],
)
def test_the_field_that_differs_is_named(here, field, monkeypatch):
    """Kills: processes that differ in seed, code or data, and one line that does not say in what."""
    first = {"config": {"train": {"seed": 0}}, "code": "a", "data": {}}
    monkeypatch.setattr(checks, "gathered", lambda mine: [mine, mine])
    check_same_everywhere(first)
    monkeypatch.setattr(checks, "gathered", lambda mine: [mine, first | here])
    with pytest.raises(ValueError, match=field):
        check_same_everywhere(first)
    assert code_digest() == code_digest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--optimizer.learning-rate", "0.1"], "config.optimizer.learning_rate"),
        (["--train.seed", "7"], "config.train.seed"),
        (["--model.d-model", "32"], "config.model.d_model"),
        (["--overwrite"], "options.overwrite"),
    ],
)
def test_two_processes_that_differ_end_with_one_line(flags, field, config, tmp_path):  # noqa: F811
    """Kills: a run of status 0 on garbage (another rate in process 1), and an abort of C++ (another width)."""
    group = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--wait", "300"]
    words = ["-m", "jaxzoo.train", *config(4, 2), *MESH, "--run-dir", str(tmp_path / "run"), *group]
    (tmp_path / "logs").mkdir()
    processes = Launched(tmp_path / "logs", [[*words, "--process", "0"], [*words, *flags, "--process", "1"]])
    try:
        ended = processes.ended(300)
    finally:
        processes.end()
    assert ended.statuses == [2, 2], ended.err
    assert f"error: {field}: process 1 has " in ended.err[0]
    assert len(ended.err[0].splitlines()) == 1
    assert not (tmp_path / "run").exists()
