"""Processes of one run that were started with different settings, code or data."""

import jax
import pytest

import jaxzoo
import pallas_kernels
from jaxzoo.train import checks
from jaxzoo.train.checks import check_same_everywhere, code_digest
from tests.parallel.launch import Launched, free_port
from tests.parallel.test_train import MESH, config  # noqa: F401 a fixture


@pytest.mark.parametrize(
    ("here", "field"),
    [
        ({"config": {"train": {"seed": 1}}}, r"config\.train\.seed: process 1 has 1, process 0 has 0"),
        ({"config": {"train": {"seed": 0, "steps": 5}}}, r"config\.train\.steps: process 1 has 5, process 0 has None"),
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


def test_the_digest_of_the_code_follows_every_file(tmp_path, monkeypatch):
    """Kills: processes with other code, file names or JAX, which have the same digest."""
    for package in (jaxzoo, pallas_kernels):
        (tmp_path / package.__name__ / "deep").mkdir(parents=True)
        monkeypatch.setattr(package, "__file__", str(tmp_path / package.__name__ / "__init__.py"))
    file = tmp_path / "pallas_kernels/deep/a.py"
    found = [code_digest(), code_digest()]
    for change in (file.touch, lambda: file.write_text("1"), lambda: file.rename(file.with_name("b.py"))):
        change()
        found.append(code_digest())
    monkeypatch.setattr(jax, "__version__", "0.0")
    assert len({*found, code_digest()}) == 5


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
