"""Random damages to every file that export and plan read: the same bytes as before, or one line and status 2."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxzoo.cli.export import main as export
from jaxzoo.cli.plan import main as plan
from tests.plan.test_plan import example

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TRIALS = 40
ODD: tuple[Any, ...] = (None, True, -1, 10**30, 1e400, "", "x" * 100_000, [], [[]], {}, {"a": {}}, "../..", 0.5, "NaN")


def places(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(value, key), *places(item)]]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one damage: bits, a cut, a value of another type, a key that is gone or new, depth, size."""
    kind = rng.choice(["bits", "cut", "value", "value", "value", "missing", "extra", "deep", "twice", "zeros"])
    try:
        value = json.loads(data.splitlines()[0] if data.count(b"\n") > 30 and b"step" in data[:10] else data)
    except ValueError:
        kind = rng.choice(["bits", "cut", "zeros"])
    if kind == "bits":
        flipped = bytearray(data)
        for _ in range(rng.choice([1, 1, 8])):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == "cut":
        return data[: rng.randrange(len(data))]
    if kind == "zeros":
        start = rng.randrange(len(data))
        return data[:start] + bytes(len(data[start : start + 64])) + data[start + 64 :]
    if kind == "deep":
        return b'{"a": ' + b"[" * 100_000
    if kind == "twice":
        return data + data
    found = places(value)
    if not found:
        return b"[]"
    container, key = rng.choice(found)
    if kind == "missing":
        del container[key]
    elif kind == "extra" and isinstance(container, dict):
        container[rng.choice(["type", "", "zzz"])] = rng.choice(ODD)
    else:
        container[key] = rng.choice(ODD)
    return json.dumps(value).encode()


@pytest.fixture
def outcome(capfd) -> Callable[..., bool]:
    """`outcome(main, argv)`: whether a command succeeded; otherwise it has printed one line and returned 2."""

    def outcome(main: Callable[[list[str]], int], argv: list[str]) -> bool:
        capfd.readouterr()
        status = main(argv)
        err = capfd.readouterr().err
        assert status in (0, 2), err
        assert "Traceback" not in err
        assert len(err) < 20_000
        lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ") == (status == 2)
        return status == 0

    return outcome


FILES = ("config.json", "newest_checkpoint.json", "metrics.jsonl", "seal", "_METADATA", "manifest.ocdbt", "numbers")


@pytest.mark.parametrize("file", FILES)
def test_a_run_that_is_exported(file, run_copy, outcome, tmp_path):
    """Kills: numbers that differ in silence, tracebacks, pages, hangs, files written by a refused command."""
    run, out = run_copy(), tmp_path / "out.safetensors"
    assert outcome(export, ["--run", str(run), "--out", str(out)])
    truth = {4: out.read_bytes()}
    out.unlink()
    assert outcome(export, ["--run", str(run), "--checkpoint", "3", "--out", str(out)])
    truth[3] = out.read_bytes()
    out.unlink()
    state = run / "checkpoints" / "4" / "state"
    numbers = max((each for each in state.rglob("d/*") if each.is_file()), key=lambda each: each.stat().st_size)
    place = {
        "seal": run / "checkpoints" / "4" / "seal" / "metadata",
        "_METADATA": state / "_METADATA",
        "manifest.ocdbt": state / "manifest.ocdbt",
        "numbers": numbers,
    }.get(file, run / file)
    whole, rng = place.read_bytes(), random.Random(file)
    names = {each.relative_to(tmp_path) for each in tmp_path.rglob("*")}
    for trial in range(TRIALS):
        place.write_bytes(damaged(whole, rng))
        which = ["--checkpoint", "best"] if file == "metrics.jsonl" and trial % 2 else []
        if outcome(export, ["--run", str(run), *which, "--out", str(out)]):
            assert out.read_bytes() in truth.values()
            out.unlink()
        assert {each.relative_to(tmp_path) for each in tmp_path.rglob("*")} == names


def test_a_file_that_is_imported(trained_run, outcome, tmp_path):
    """Kills: an import of other numbers, or of a model that is too large, and a directory that a refused one leaves."""
    file, other, run = (tmp_path / name for name in ("m.safetensors", "other.safetensors", "run"))
    assert outcome(export, ["--run", str(trained_run), "--out", str(file)])
    whole, rng = file.read_bytes(), random.Random(0)
    size = 8 + int.from_bytes(whole[:8], "little")
    for trial in range(2 * TRIALS):
        head = damaged(whole[:size], rng) if trial % 4 == 0 else whole[:8] + damaged(whole[8:size], rng)
        if trial % 4 > 1:
            head = (len(head) - 8).to_bytes(8, "little") + head[8:]
        file.write_bytes(head + whole[size:] if trial % 5 else damaged(whole, rng))
        if outcome(export, ["--import", str(file), "--out", str(run)]):
            assert outcome(export, ["--run", str(run), "--out", str(other)])
            assert other.read_bytes()[-1000:] == whole[-1000:]
            other.unlink()
            shutil.rmtree(run)
        assert not run.exists()


def test_a_saved_plan(outcome, tmp_path, capfd):
    """Kills: a table of what nobody planned, or a traceback in its place."""
    file: Path = tmp_path / "plan.json"
    example().save(file)
    whole, rng = file.read_bytes(), random.Random(0)
    for _ in range(4 * TRIALS):
        file.write_bytes(damaged(whole, rng))
        status = plan(["--table", str(file)])
        err = capfd.readouterr().err
        assert status in (0, 2)
        assert err.count("\n") == (status == 2)
        assert len(err) < 5000
