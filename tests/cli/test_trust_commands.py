"""Commands in odd surroundings: no home, no room, no letters, changed models and texts."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxzoo.cli.convert import main as convert
from jaxzoo.cli.evaluate import main as evaluate
from jaxzoo.cli.evaluate_common import open_run
from jaxzoo.cli.export import main as export
from jaxzoo.cli.generate import main as generate
from jaxzoo.cli.runner import _use_compilation_cache
from jaxzoo.evals.text_model import TextModel
from jaxzoo.evals.validation import Validation
from jaxzoo.loading import load
from jaxzoo.train import memory
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.utils.checksums import add_checksum, without_checksum
from jaxzoo.utils.screen import printable
from jaxzoo.utils.text_table import text_table
from tests.data.test_trust_files import GPT2
from tests.interop import published

ROOT = Path(__file__).parents[2]


HOMES = """
train --config config.py --run-dir HOME
convert --from folder --out HOME
convert --run run --to HOME
export --run HOME --out x.safetensors
export --import HOME --out run
export --run run --out HOME
evaluate --run HOME
evaluate --run run --out HOME
compare HOME run
inspect --run HOME
generate --run HOME --prompt a
linearize --run run --out HOME
classify --run run --data folder --run-dir HOME
plan --table HOME
data_build --source text --paths folder --out HOME
data_tokenize --data HOME --tokenizer bytes --out x
data_tokenize --data folder --tokenizer bytes --out HOME
data_tokenize --data folder --tokenizer HOME --out x
data_train_tokenizer --data HOME --out x
data_train_tokenizer --data folder --out HOME
data_demo_pile --out HOME
data_bigrams --data HOME --out x
data_recall_statistics --data folder --out HOME
tasks_records --out HOME
"""


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """An empty directory, for a user without HOME and without an entry in /etc/passwd, as in a container."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    return tmp_path


@pytest.mark.parametrize("place", ["~nosuchuser/x", "~nosuchuser", "~/x"])
def test_an_unknown_home_is_one_line(place, homeless, mqar_file, capsys):
    """Kills: a traceback for ~nosuchuser, and for ~ without a home; a directory that is named ~."""
    (homeless / "folder").mkdir()
    shutil.copy(mqar_file, "config.py")
    before = sorted(homeless.iterdir())
    for line in HOMES.strip().splitlines():
        command, *words = line.replace("HOME", place).split()
        assert importlib.import_module(f"jaxzoo.cli.{command}").main(words) == 2, line
        (said,) = capsys.readouterr().err.splitlines()
        assert "Could not determine home directory. A path with ~ needs HOME" in said, line
    assert sorted(homeless.iterdir()) == before


@pytest.mark.parametrize("words", ["evaluate --run no --tasks fda --data .", "classify --run no --data . --run-dir r"])
def test_the_allocator_is_set_before_a_run_is_read(words, homeless, monkeypatch):
    """Kills: lm_eval, or the size check of a stored config, which starts JAX before that, and so slow steps."""
    for module in ("evaluate_tasks", "classify", "runner"):  # imported before the runner's own is another
        monkeypatch.setattr(f"jaxzoo.cli.{module}.prepare_jax", {}.popitem)
    monkeypatch.setattr("jaxzoo.cli.evaluate_tasks._task_names", None)
    command, *options = words.split()
    with pytest.raises(KeyError, match="popitem"):
        importlib.import_module(f"jaxzoo.cli.{command}").main(options)


@pytest.mark.parametrize("cache", [None, "~nosuchuser/cache", "/proc/cache"])
def test_programs_are_not_cached_without_a_place(cache, homeless, monkeypatch):
    """Kills: a traceback of the compilation cache, or a directory named ~, in a container without a home."""
    monkeypatch.setattr("jax._src.compilation_cache.compress_executable", None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    _use_compilation_cache()
    found = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before)
    assert found is None
    assert not list(homeless.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"JAX_PLATFORMS": "nonsense"}, 2, "JAX_PLATFORMS='nonsense'"),
        ({"HOME": None}, 0, ""),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, 0, ""),
    ],
)
def test_surroundings(change, status, message, trained_run):
    """Kills: a traceback for an absent backend, without HOME, and for output in ASCII."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **change}
    environment = {name: value for name, value in environment.items() if value is not None}
    words = [sys.executable, "-m", "jaxzoo.generate", "--run", str(trained_run), "--prompt", "ä", "--echo"]
    done = subprocess.run(
        [*words, "--max-tokens", "2"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_program_of_the_cache_is_noticed(monkeypatch):
    """Kills: SIGSEGV of XLA for one bit of a compiled program that has changed on the disk."""
    compilation_cache = pytest.importorskip("jax._src.compilation_cache")
    if not getattr(compilation_cache, "zstandard", None):
        pytest.skip("zlib, which has a checksum of its own")
    monkeypatch.setattr(compilation_cache, "compress_executable", compilation_cache.compress_executable)
    _use_compilation_cache()
    program = np.random.default_rng(0).integers(0, 4, 3000, np.uint8).tobytes()
    packed = compilation_cache.compress_executable(program)
    assert compilation_cache.decompress_executable(packed) == program
    noticed = 0
    for at in range(len(packed)):
        wrong = bytearray(packed)
        wrong[at] ^= 1 << at % 8
        for data in (bytes(wrong), packed[:at]):
            try:
                assert compilation_cache.decompress_executable(data) == program  # some bits mean nothing
            except (compilation_cache.zstandard.ZstdError, MemoryError):
                noticed += 1
    assert noticed > 1.9 * len(packed)


def test_names_give_no_commands_to_the_terminal():
    """Kills: an escape sequence in the name of a tensor or subset that reaches the terminal."""
    for text in ("\x1b[2J", "a\x07", "\u202eabc", "\x9b31m"):
        assert printable(text).isprintable()
        assert text_table([[text, "1"]]).isprintable()
    assert printable("naïve 漢字\n") == "naïve 漢字\n"


def test_other_weights_are_not_resumed(trained_run, tmp_path, capsys):
    """Kills: scores of another model of the same name, step and config, reported by --resume."""
    (tmp_path / "fda.jsonl").write_text('{"text": "never odd", "value": "or"}\n')
    place = tmp_path / "run"
    shutil.copytree(trained_run, place)
    words = ["--run", str(place), "--tasks", "fda", "--data", str(tmp_path), "--scorer", "own"]
    words += ["--out", str(tmp_path / "out.json")]
    assert evaluate([*words, "--checkpoint", "4"]) == 0
    assert evaluate([*words, "--checkpoint", "4", "--resume"]) == 0
    out = json.loads((tmp_path / "out.json").read_text())
    assert len(out["variables"]) == 64
    for change in ({"variables": "0" * 64}, {"step": 3}, {"limit": 5}):
        (tmp_path / "out.json").write_text(json.dumps(add_checksum({**without_checksum(out), **change})))
        capsys.readouterr()
        assert evaluate([*words, "--checkpoint", "4", "--resume"]) == 2
        assert f"--resume: {next(iter(change))} is " in capsys.readouterr().err


def test_changed_text_is_told(run_copy, capsys):
    """Kills: scores of another text than the run was trained on, without a word."""
    file = run_copy() / "manifest.json"
    manifest = json.loads(file.read_text())
    name, size, digest = manifest["valid"][0]
    for row, field in (
        ([name, size, digest], ""),
        ([name, size, "0" * 64], "data.valid.0.2"),
        ([f"{name}.old", size, digest], "data.valid.0.0"),
        ([name, size + 1, digest], "data.valid.0.1"),
    ):
        file.write_text(json.dumps({**manifest, "valid": [row, *manifest["valid"][1:]]}))
        open_run(str(file.parent), [], None)
        warning = f"the data have changed since the run was trained ({field} differs)" if field else ""
        assert warning in (said := capsys.readouterr().err)
        assert bool(field) == ("have changed" in said)


def test_batches_follow_the_memory(trained_run, monkeypatch, tmp_path, capsys):
    """Kills: a batch of 256 rows whose logits are beyond the memory, and another result of smaller ones."""
    flags = ["--run", str(trained_run), "--out", str(tmp_path / "out.json")]
    found = []
    rows = []
    whole = Validation._parts
    monkeypatch.setattr(Validation, "_parts", lambda *a: rows.append(len(parts := whole(*a))) or parts)
    for room in (1e9, 150_000):
        monkeypatch.setattr("jaxzoo.train.memory.memory_of_each", lambda _, room=room: room)
        monkeypatch.setattr("jaxzoo.loading.trained.check_model", lambda _: None)
        monkeypatch.setattr("jaxzoo.train.checks.check_estimate", lambda *_: None)
        assert evaluate(flags) == 0, capsys.readouterr().err
        found.append(json.loads((tmp_path / "out.json").read_text())["metrics"])
        rows.append(0)
    assert set(rows[: rows.index(0)]) == {1}
    assert max(rows[rows.index(0) :]) > 1
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    monkeypatch.setattr("jaxzoo.train.memory.memory_of_each", lambda _: 1000)
    assert evaluate(flags) == 1
    assert "needs" in capsys.readouterr().err


def test_rows_of_texts_follow_the_memory(trained_run, monkeypatch):
    """Kills: likelihoods of a batch beyond the memory, and others of smaller ones."""
    loaded = load(trained_run, text=True)
    texts = [f"{i} never odd or even" for i in range(5)]
    scores = []
    counted = []
    sizes = []
    count = memory._counted
    batches = TextModel._batches
    monkeypatch.setattr(TextModel, "_batches", lambda *a: sizes.append(a[-1]) or batches(*a))
    monkeypatch.setattr(memory, "_counted", lambda program: counted.append(count(program)) or counted[-1])
    for share in (100.0, 0.6):
        fixed, growing = counted[0] if counted else (0, 1e9)
        room = (fixed + share * growing) / memory.ROOM
        monkeypatch.setattr(memory, "memory_of_each", lambda _, room=room: room)
        model = TextModel(loaded.model, loaded.tokenizer, batch_size=4)
        scores.append(model.text_log_likelihoods(texts))
    assert sizes[0] == 4 > sizes[1]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    monkeypatch.setattr(sys.modules["jaxzoo.generation.generate"], "memory_of_each", lambda _: 1)
    assert generate(["--run", str(trained_run), "--prompt", "a", "--max-tokens", "2"]) == 2


def test_a_folder_that_is_not_finite_is_refused(tmp_path, capsys):
    """Kills: a model of NaN that is converted, exported and evaluated with status 0."""
    for bad in (np.nan, np.inf):
        folder = tmp_path / str(bad)
        folder.mkdir()
        published.make_folder("llama-yarn-tied", folder)
        file = folder / "model.safetensors"
        tensors = safetensors.numpy.load_file(file)
        last = max(tensors)
        tensors[last].flat[0] = bad
        safetensors.numpy.save_file(tensors, file)
        assert convert(["--from", str(folder), "--out", str(tmp_path / "run")]) == 2
        assert "is not finite" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_an_import_is_complete_with_its_checkpoint(tmp_path, monkeypatch):
    """Kills: a converted run without its tokenizer, if the command is killed after the checkpoint is written."""
    (tmp_path / "folder").mkdir()
    published.make_folder("llama-yarn-tied", tmp_path / "folder")
    (tmp_path / "folder" / "tokenizer.json").write_text(json.dumps(GPT2))
    seen = []
    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda *a, **k: seen.append((tmp_path / "run/tokenizer").is_dir()) or save(*a, **k)
    )
    assert convert(["--from", str(tmp_path / "folder"), "--out", str(tmp_path / "run")]) == 0
    assert seen == [True]


def test_an_import_names_its_own_options(tmp_path, capsys):
    """Kills: advice of convert that names --resume, --overwrite and --run-dir, which it lacks."""
    (tmp_path / "folder").mkdir()
    published.make_folder("llama-yarn-tied", tmp_path / "folder")
    places = [str(tmp_path / "folder"), "--out", str(tmp_path / "run")]
    for make in (lambda: (tmp_path / "run").mkdir(), lambda: (tmp_path / "run/config.json").write_text("{}")):
        make()
        (tmp_path / "run" / "stranger").touch()
        for command, option in ((convert, "--from"), (export, "--import")):
            assert command([option, *places]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.endswith("choose another place with --out")
