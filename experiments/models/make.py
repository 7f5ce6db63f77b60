"""Trains, exports and scores the models of this directory, and lists them in README.md.

`python -m experiments.models.make`, from the root of the repository, scores all models again and trains missing ones in
runs/models; with a NAME, only that model. `MODELS` has the flags of each.
"""

import argparse
import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.cli.evaluate_common import open_run
from jaxzoo.cli.export import main as export
from jaxzoo.cli.runner import prepare_jax
from jaxzoo.cli.train import main as train
from jaxzoo.loading import load
from jaxzoo.models.accounting import count_parameters, state_bytes
from jaxzoo.utils.whole_files import write_json, write_whole

PLACE = Path(__file__).parent
RUNS = Path("runs/models")
MIXERS = {
    "attention": "attention",
    "based": "taylor_linear_attention",
    "gated_delta_net": "gated_delta_net",
    "mamba2": "mamba2",
    "base_conv": "base_conv",
}
MQAR = """--config configs/mqar/zoo.py --train.stop-at-accuracy 0.99 --train.eval-every 50 --model.vocab-size 1024
--data.train.0.task.vocab-size 1024 --data.valid.0.task.vocab-size 1024 --model.mixer"""
KINDS = {"mqar": MQAR, "text": "--config configs/lm/small.py --model.mixer"}
MODELS = {f"{kind}-{name}": f"{of} {mixer}" for kind, of in KINDS.items() for name, mixer in MIXERS.items()}
"""Flags of `jaxzoo train` by model."""
del MODELS["mqar-mamba2"]  # it stays at the guessing line with these settings
MODELS["mqar-base_conv"] += " --model.pattern.1.filter implicit --train.steps 300 --train.eval-every 150"
PAIRS = (4, 8, 16)
"""Numbers of pairs on which MQAR models are scored; they are trained on 8."""


def make(name: str) -> None:
    """Trains, exports and scores a model unless it exists."""
    run, folder = RUNS / name, PLACE / name
    if not folder.exists():
        RUNS.mkdir(parents=True, exist_ok=True)
        resume = ("--resume",) * (run / "config.json").exists()
        if train([*MODELS[name].split(), "--run-dir", str(run), *resume]):
            raise SystemExit(f"{name}: not trained")
        if export(["--run", str(run), "--out", str(folder), "--dtype", "bfloat16"]):
            raise SystemExit(f"{name}: not exported")
    write_json(folder / "scores.json", score(folder))


def score(folder: Path) -> dict[str, float | str]:
    """Returns parameters, state bytes, steps and scores of a model; of text also the version of Python's source."""
    loaded = load(folder)
    known: dict[str, float | str] = {
        "parameters": count_parameters(loaded.model),
        "state_bytes": state_bytes(loaded.model, loaded.config.model.max_length),
        "steps": loaded.step,
    }
    if loaded.tokenizer is None:
        for n in PAIRS:
            run = open_run(str(folder), ["--data.valid.0.task.n-pairs", str(n)], None)
            known[f"accuracy, {n} pairs"] = round(run.evaluate()["valid/accuracy"], 4)
        return known
    many = ["--train.batch-size", "64"]  # divisible by the devices, whose number evaluation checks
    bits = open_run(str(folder), many, None).evaluate()["valid/bits_per_byte"]
    return {**known, "bits per byte": round(bits, 4), "python": platform.python_version()}


def table(kind: str) -> str:
    """Returns the scores of all models of a kind as a Markdown table."""
    files = {name: PLACE / name / "scores.json" for name in MODELS if name.startswith(kind)}
    rows = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    keys = list(dict.fromkeys(key for row in rows.values() for key in row if key != "python"))
    keys.sort(key=lambda key: (not key.startswith(("accuracy", "bits")), len(key)))
    lines = [["model", *(key.replace("_", " ") for key in keys)], ["---"] * (len(keys) + 1)]
    lines += [[f"`{name}`", *(f"{row[key]:,}" for key in keys)] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the named models, and the tables of README.md."""
    parser = argparse.ArgumentParser(prog="python -m experiments.models.make", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MODELS)}; default: all")
    names = parser.parse_args(argv).names or list(MODELS)
    if unknown := sorted(set(names) - MODELS.keys()):
        parser.error(f"NAME {unknown[0]!r} must be one of {', '.join(MODELS)}")
    prepare_jax()
    for name in names:
        make(name)
    readme = PLACE / "README.md"
    text = readme.read_text()
    for kind in ("mqar", "text"):
        part = f"<!-- {kind} -->\n{table(kind)}\n<!-- /{kind} -->"
        text = re.sub(f"<!-- {kind} -->.*<!-- /{kind} -->", lambda _, part=part: part, text, flags=re.DOTALL)
    write_whole(readme, text)


if __name__ == "__main__":
    main()
