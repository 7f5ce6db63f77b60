"""`jaxzoo plan` without a compiler. Kills: a traceback in place of a refusal."""

import dataclasses
from pathlib import Path

from jaxzoo.cli.plan import main
from jaxzoo.plan import topology
from tests.plan.test_plan import GIB, example

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "configs/lm/based_tiny.py")

REFUSED = {
    "--config FILE is required": ["--topology", "v5e:2x4"],
    "--topology is required": ["--config", TINY],
    "topology 'v9:2x2' must be one of v5e:XxY, v5p:XxYxZ, v6e:XxY, h100:N (up to 8)": [
        "--config", TINY, "--topology", "v9:2x2",
    ],
    "topology 'v5e:4' must be one of": ["--config", TINY, "--topology", "v5e:4"],
    "topology 'v5e:4x0' must be one of": ["--config", TINY, "--topology", "v5e:4x0"],
    "topology 'h100' must be one of": ["--config", TINY, "--topology", "h100"],
    "--most-compiled 0 must be positive": [
        *["--config", TINY],
        *["--topology", "h100:8", "--most-compiled", "0"],
    ],
    "unknown option --topologie; did you mean --topology?": ["--config", TINY, "--topologie", "h100:8"],
    "--save gone/plan.json: its directory does not exist": [
        "--config", TINY, "--topology", "h100:8", "--save", "gone/plan.json",
    ],
    "--table takes only files": ["--table", "a.json", "--mesh.fsdp", "2"],
    "config file nowhere.py does not exist": ["--config", "nowhere.py", "--topology", "h100:8"],
}  # fmt: skip


def test_refusals(capsys):
    """Kills: tracebacks, and a status that says that a plan was tried."""
    for line, words in REFUSED.items():
        assert main(words) == 2
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1


def test_missing_compiler(monkeypatch, capsys):
    """Kills: a traceback where the compiler is not installed."""
    monkeypatch.setattr(topology, "missing", lambda platform: f"no compiler for {platform}; pip install it")
    assert main(["--config", TINY, "--topology", "v5e:2x4"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: topology 'v5e:2x4': no compiler for tpu; pip install it; pip install '.[aot]'")
    assert said.count("\n") == 1


def test_saved_plans_as_a_table(tmp_path, capsys):
    """Kills: a table that loses a plan or their order."""
    example(name="first").save(tmp_path / "a.json")
    large = dataclasses.replace(example().memory, peak=20 * GIB)
    example(name="second", memory=large).save(tmp_path / "b.json")
    assert main(["--table", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[2:]] == ["| first", "| second"]
