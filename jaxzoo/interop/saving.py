"""`save`: writes a model of ours as a folder that other libraries load."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_files import TOKEN_IDS, save_tokenizer
from jaxzoo.interop.families import FAMILIES
from jaxzoo.interop.mapping import Account, Family, Move, slots, their_shapes
from jaxzoo.models.blueprint import Variables, make_blueprint, names_of, split_variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.export import save_arrays
from jaxzoo.utils.whole_files import write_json, write_whole

LARGEST_FILE = 2 * 10**9
"""Largest number of bytes per file, and on the host while it is written; larger models have several files and an
index."""


def save(
    model: LanguageModel | tuple[LanguageModelConfig, Variables],
    directory: str | Path,
    *,
    family: str | None = None,
    tokenizer: Tokenizer | None = None,
    dtype: Any = jnp.float32,
    largest_file: int = LARGEST_FILE,
) -> Account:
    """Writes config.json, model.safetensors and the files of the tokenizer, one tensor after the other.

    Begin and end tokens, the generation config and the chat template are those of the imported folder, or the
    tokenizer's.

    Args:
      model: the model as in training (scanned); or its config and variables.
      directory: a new or empty one.
      family: name in `FAMILIES`; None: the first that supports the model.
      tokenizer: tokenizer of its tokens; None: none is written.
      dtype: dtype of all tensors.
      largest_file: most bytes of tensors in one file.

    Returns the mapping of tensors. Raises `ValueError` if the family has no such model, or the directory holds files;
    `OSError` if a file cannot be written.
    """
    config, variables = model if isinstance(model, tuple) else (model.config, split_variables(model))
    place = Path(directory).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place} holds files; name a new directory")
    chosen, content = describe(config, family)
    places = slots(config, make_blueprint(config))
    moves = chosen.moves(config)
    if left := places.keys() - {name for move in moves for name in move.ours}:
        raise ValueError(f"variable {min(left)} has no place in a model of family {chosen.name}")
    arrays = names_of(variables.params) | names_of(variables.buffers)

    def ours(name: str) -> np.ndarray:
        slot = places[name]
        array = arrays[slot.path]
        return np.asarray(jax.device_get(array if slot.repeat is None else array[slot.repeat]))

    def theirs(move: Move, index: int) -> np.ndarray:
        return move.transform.write(*map(ours, move.ours))[index]

    tensors = [
        (name, shape, functools.partial(theirs, move, index))
        for move in moves
        for index, (name, shape) in enumerate(their_shapes(move, places).items())
    ]
    place.mkdir(parents=True, exist_ok=True)
    _write_files(place, tensors, dtype, largest_file)
    if tokenizer is not None:
        save_tokenizer(tokenizer, place)
        ends = list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.end_of_text
        settings = {"bos_token_id": tokenizer.begin_of_text, "eos_token_id": ends}
        settings |= getattr(tokenizer, "files", {}).get("generation_config.json", {})
        write_json(place / "generation_config.json", settings)
        content |= {name: settings[name] for name in TOKEN_IDS if name in settings}
    kind = str(np.dtype(dtype))
    written = json.dumps({**content, "dtype": kind, "torch_dtype": kind}, indent=2)  # of transformers 5 and 4
    write_whole(place / "config.json", f"{written}\n")
    return Account(moves, ())


def describe(config: LanguageModelConfig, family: str | None = None) -> tuple[Family, dict[str, Any]]:
    """Returns the family of a model, and its config.json. Raises `ValueError` if the family, or all, have no such
    model."""
    if family is not None:
        if family not in FAMILIES:
            raise ValueError(f"family {family!r} must be one of {', '.join(FAMILIES)}")
        return FAMILIES[family], FAMILIES[family].write(config)
    reasons = []
    for candidate in FAMILIES.values():
        try:
            return candidate, candidate.write(config)
        except ValueError as error:
            reasons.append(f"{candidate.name}: {error}")
    raise ValueError(f"no family of other libraries has this model; {'; '.join(reasons)}")


Entry = tuple[str, tuple[int, ...], Callable[[], np.ndarray]]
"""Name, shape and maker of a tensor."""


def _write_files(place: Path, tensors: list[Entry], dtype: Any, largest: int) -> None:
    width = np.dtype(dtype).itemsize
    files: list[list[Entry]] = [[]]
    filled = 0
    for entry in tensors:
        n = int(np.prod(entry[1])) * width
        if files[-1] and filled + n > largest:
            files.append([])
            filled = 0
        files[-1].append(entry)
        filled += n
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    names = ["model.safetensors"] if len(files) == 1 else names
    for name, part in zip(names, files, strict=True):
        arrays = {key: np.asarray(make(), dtype).reshape(shape) for key, shape, make in part}
        save_arrays(place / name, arrays, {"format": "pt"})
    if len(files) == 1:
        return
    total = sum(int(np.prod(shape)) for _, shape, _ in tensors) * width
    places = {entry[0]: name for name, part in zip(names, files, strict=True) for entry in part}
    write_json(place / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})
