"""One command that is killed, or meets a disk error, at random places, and is repeated; run with the shim preloaded.

    LD_PRELOAD=shim.so python -m tests.faults.trial NAME PLACES FOLDER

Each attempt is a forked process, so that the imports are paid for once. Prints one JSON object: the operations that the
command takes, and the places after which the repeated command gave other results than an undisturbed one.
"""

import contextlib
import ctypes
import errno
import importlib
import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
CONFIG = """
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.train.config import RunConfig, TrainConfig

config = RunConfig(
    model=LanguageModelConfig(vocab_size=257, d_model=8, n_layers=1, max_length=16, pattern=(AttentionConfig(),)),
    data=TextDataConfig(path="text", length=16, valid_tokens=64),
    train=TrainConfig(batch_size=4, valid_batch_size=4, steps=3, log_every=1, eval_every=2, checkpoint_every=1),
)
"""


class Trial(NamedTuple):
    """A command and its output."""

    command: str
    """Module in `jaxzoo.cli`."""
    words: str
    again: Callable[[Path], str]
    """Words of the repeated command, by the place of the results that the first one left."""
    result: Callable[[Path], Any]
    """Results, compared by value."""
    prepare: tuple[tuple[str, str], ...] = ()
    """Commands and words that make the inputs."""


def files(place: Path) -> Any:
    """All files, without locks."""
    paths = [place, *place.rglob("*")]
    return {str(p): p.read_bytes() for p in paths if p.is_file() and not p.name.endswith(".lock")}


def exported(place: Path) -> Any:
    """The exported file."""
    return files(place.with_suffix(".safetensors"))


def run(place: Path) -> Any:
    """Digests, cursor and config of a run's last checkpoint, and its metrics; a disk error may cost an earlier one."""
    from jaxzoo.train.checkpoint import folders, read_seal

    metrics = place / "metrics.jsonl"
    seal = read_seal(max(folders(place / "checkpoints").items())[1]).to_json()
    return json.loads(json.dumps(seal)), metrics.read_text() if metrics.exists() else ""


TO_FOLDER = ("convert", "--run trained --to folder")
TRAIN = ("train", "--config config.py --run-dir trained")
BUILD = ("data_build", "--source text --paths text --valid-fraction 0.3 --max-shard-mb 1 --out built")


def resume(place: Path) -> str:
    """How to go on: a run that has no config was not begun, and leaves nothing to resume."""
    return "--resume" if (place / "config.json").is_file() else ""


TRIALS = {
    "train": Trial("train", "--config config.py --run-dir out", resume, run),
    "build": Trial("data_build", BUILD[1].replace("built", "out"), lambda _: "", files),
    "tokenize": Trial("data_tokenize", "--data built --tokenizer bytes --out out", lambda _: "", files, (BUILD,)),
    "convert": Trial("convert", "--from folder --out out", lambda _: "", run, (TRAIN, TO_FOLDER)),
    "export": Trial("export", "--run trained --out out.safetensors", lambda _: "", exported, (TRAIN,)),
    "linearize": Trial(
        "linearize",
        "--run trained --out out --mixer hedgehog --window 8 --transfer.tokens 128 --finetune.tokens 128 "
        "--train.batch-size 4 --train.checkpoint-every 1 --train.log-every 1",
        lambda place: "--resume",
        run,
        (TRAIN,),
    ),
}  # fmt: skip


def attempt(command: str, words: str, at: int = 0, number: int = 0) -> tuple[int, int]:
    """Runs a command in a forked process; returns its wait status, and how many operations it made (0: killed)."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        status = 70
        try:
            shim.faults_begin(os.fsencode(Path.cwd() / "out"), at, number)
            status = importlib.import_module(f"jaxzoo.cli.{command}").main(words.split())
            os.write(write, str(shim.faults_count()).encode())
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(write)
    with open(read) as made:
        count = made.read()
    return os.waitpid(child, 0)[1], int(count or 0)


def clear() -> None:
    """Removes all that a command made."""
    for left in Path.cwd().glob("out*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    Path("log").unlink(missing_ok=True)


def main(name: str, places: int, folder: Path) -> None:
    trial = TRIALS[name]
    (folder / "text").mkdir(parents=True)
    os.chdir(folder)
    Path("config.py").write_text(CONFIG)
    draw = random.Random(name)
    for i in range(12):
        Path("text", f"{i}.txt").write_text(" ".join(draw.choices(WORDS, k=60)))
    for command, words in trial.prepare:
        assert attempt(command, words)[0] == 0, Path("log").read_text()
    clear()
    status, n = attempt(trial.command, trial.words)
    assert status == 0, Path("log").read_text()
    out, found = Path.cwd() / "out", []
    truth = trial.result(out)
    for _ in range(places):
        clear()
        at, number = draw.randint(1, n), draw.choice((0, 0, errno.EIO, errno.ENOSPC))
        first, _ = attempt(trial.command, trial.words, at, number)
        words = f"{trial.words} {trial.again(out)}"
        if first and name == "convert":  # an import that failed leaves a run without checkpoint: it is made again
            shutil.rmtree(out, ignore_errors=True)
        last = 0 if not first and name in ("train", "convert", "linearize") else attempt(trial.command, words)[0]
        same = False
        with contextlib.suppress(Exception):
            same = trial.result(out) == truth
        print(f"{name}: operation {at} of {n}, error {number}: {first} {last} {same}", file=sys.stderr, flush=True)
        if last or not same:
            found.append([at, number, first, last, same, Path("log").read_text()[-2000:]])
    print(json.dumps({"operations": n, "failed": found}))


if __name__ == "__main__":
    shim = ctypes.CDLL(None)
    shim.faults_count.restype = ctypes.c_long
    shim.faults_begin.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
    modules = "fitting interop.runs interop.saving data.corpus.building linearization.measure linearization.transfer"
    for module in modules.split():
        importlib.import_module(f"jaxzoo.{module}")
    measure = sys.modules["jaxzoo.linearization.measure"]
    measure.measure, measure.table = lambda *_: [], str  # writes nothing, and compiles eight programs
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
