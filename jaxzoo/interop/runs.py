"""Runs made of folders."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from jaxzoo.config.config_io import to_json
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.data.tokens.tokenizer_files import save_tokenizer
from jaxzoo.interop.loading import Opened, find_tokenizer, open_folder, read_variables
from jaxzoo.loading.importing import create_imported
from jaxzoo.train.config import ExperimentConfig
from jaxzoo.train.run_dir import RunDirectory

LENGTH = 256
"""Tokens of a window of the data of an imported run, which is to be overridden; fewer where the model reads fewer."""


def import_folder(
    directory: Path, run: RunDirectory, *, dtype: Any = None, ignore_fields: Collection[str] = ()
) -> Opened:
    """Makes a run whose one checkpoint, that of step 0, holds the model of a folder, in float32, and its tokenizer.

    Its data are text, by default the source of Python's standard library: name others by `--data.path`.

    Arguments and errors as those of `jaxzoo.interop.load`; `ValueError` also where `run` holds one already. Nothing is
    written then.
    """
    run.check(resume=False, overwrite=False)
    opened = open_folder(directory, ignore_fields=ignore_fields, dtype=dtype)
    tokenizer = find_tokenizer(directory)
    place = "bytes" if tokenizer is None else str(run.tokenizer)
    length = min(LENGTH, opened.config.max_length)
    data = TextDataConfig(length=length, tokenizer_path=place, valid_tokens=max(100_000, length))
    config = to_json(ExperimentConfig(model=opened.config, data=data))
    variables = read_variables(opened, device=jax.devices("cpu")[0])
    note = {"folder": str(directory.absolute()), "family": opened.family.name, "step": 0}
    fingerprint = "" if tokenizer is None else tokenizer.fingerprint
    create_imported(run, config, variables, note, fingerprint)
    if tokenizer is not None:
        save_tokenizer(tokenizer, run.tokenizer)
    return opened
