"""`load`: converts a folder of another library to a model of ours."""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from jaxzoo.config.json_files import read_json, refuse_pointer
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_files import PAIRS, WORLD, load_tokenizer
from jaxzoo.interop.families import FAMILIES
from jaxzoo.interop.fields import Fields, read_config
from jaxzoo.interop.gguf_file import read_gguf
from jaxzoo.interop.mapping import Account, Family, Slot, account, slots
from jaxzoo.interop.safetensors_file import read_safetensors
from jaxzoo.interop.torch_pickle import read_torch_file
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint, names_of
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.parallel.sharding import named_sharding
from jaxzoo.utils.screen import warn

READERS: Mapping[str, Callable[[Path], dict[str, np.ndarray]]] = {
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_torch_file,
}
"""Readers by file name, in order of priority; each also reads several files with an index (`<name>.index.json`)."""


class Imported(NamedTuple):
    """Loaded model of another library."""

    model: LanguageModel
    """The model: `model(tokens)` takes ids (b, t) and gives float32 logits (b, t, vocab), with as many entries as the
    embedding has rows. `model.init_state(b, capacity=n)`, `model.prefill(tokens, state)` and `model.step(token, state)`
    stream: logits (b, t, vocab) or (b, vocab), and the new state."""
    config: LanguageModelConfig
    tokenizer: Tokenizer | None
    """Tokenizer of the folder; None if it has none of a known kind."""
    account: Account


class Opened(NamedTuple):
    """Folder whose tensors are all accounted for, but not read."""

    family: Family
    config: LanguageModelConfig
    blueprint: Blueprint
    slots: Mapping[str, Slot]
    tensors: Mapping[str, np.ndarray]
    """Tensors of the folder, as views of its files; those of a GGUF file are made on use."""
    account: Account


def load(
    directory: str | Path,
    mesh: Mesh | None = None,
    dtype: Any = None,
    *,
    ignore_fields: Collection[str] = (),
) -> Imported:
    """Loads a local folder in the format of the Hugging Face hub: config.json, tensors, optionally tokenizer.json.

    Tensors are read one after the other, directly into their shards: the peak of host memory is the largest tensor in
    the requested dtype, in addition to the model; a process reads only its own shards.

    Args:
      directory: the folder.
      mesh: a mesh of `jaxzoo.parallel.sharding.make_mesh`, over which the variables are sharded; None: the first
        device.
      dtype: float32 or bfloat16, of activations and of matrices; norms, biases and decays stay float32. None: float32.
      ignore_fields: fields of config.json that do not affect the function of the model.

    Raises `ValueError` if the folder is of no known family, a field or tensor is unknown, missing or of another kind,
    or a file is damaged; `OSError` if a file cannot be read.
    """
    place = Path(directory).expanduser()
    opened = open_folder(place, ignore_fields=ignore_fields, dtype=dtype)
    variables = read_variables(opened, mesh=mesh, dtype=dtype)
    return Imported(opened.blueprint.model(variables), opened.config, find_tokenizer(place), opened.account)


def open_folder(directory: Path, *, ignore_fields: Collection[str] = (), dtype: Any = None) -> Opened:
    """Reads config.json and the names and shapes of all tensors; see `load`."""
    if directory.suffix == ".gguf":
        content, tensors, _ = read_gguf(directory)
        fields = Fields(content, str(directory), ignore_fields)
    else:
        fields, tensors = read_config(directory, ignore_fields), read_tensors(directory)
    family = next((each for each in FAMILIES.values() if each.matches(fields.content, tensors)), None)
    if family is None:
        kind, known = fields.content.get("model_type"), ", ".join(FAMILIES)
        raise ValueError(f"{fields.where}: model_type = {kind!r} is of no family that is read: {known}")
    for pattern, new in family.renames.items():
        tensors = {re.sub(pattern, new, name): tensor for name, tensor in tensors.items()}
    tensors = family.prepare(tensors)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    try:
        names = ("num_hidden_layers", "n_layer")
        n = max((x for name in names if isinstance(x := fields.content.get(name), int)), default=0)
        if n > len(tensors):  # before lists of as many layers take the memory
            raise ValueError(f"{n:,} layers must be at most as many as the {len(tensors):,} tensors of the folder")
        config = family.read(fields, shapes)
        fields.check_all_read()
        blueprint = make_blueprint(config)
    except ValueError as error:  # of our own configs: it names their fields, and not the file
        raise error if str(error).startswith(str(directory)) else ValueError(f"{fields.where}: {error}") from None
    if dtype is not None:
        name = str(jnp.dtype(dtype))
        if name not in ("float32", "bfloat16"):
            raise ValueError(f"load: dtype={name} must be float32 or bfloat16")
        config = dataclasses.replace(config, dtype=name)
        blueprint = make_blueprint(config)
    places = slots(config, blueprint)
    found = account(family, family.moves(config), tensors, places, str(directory))
    return Opened(family, config, blueprint, places, tensors, found)


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a folder by name, as read-only views of its mapped files. Raises `ValueError` if there are
    none, a file is missing or damaged, or an index disagrees with its files; `OSError` if a file cannot be read."""
    for name, read in READERS.items():
        if (directory / name).is_file():
            refuse_pointer(directory / name)
            return read(directory / name)
        index = directory / f"{name}.index.json"
        if index.is_file():
            return _read_several(index, read)
    released = sorted(directory.glob("*.pth"))
    if len(released) > 1:
        raise ValueError(f"{directory} holds {len(released)} models, such as {released[0].name}; keep one .pth file")
    if released:
        refuse_pointer(released[0])
        return read_torch_file(released[0])
    raise ValueError(
        f"{directory} holds no tensors: {', '.join(READERS)}, an index of several, or one .pth file must be there"
    )


def _read_several(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    places = read_json(index, dict).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"{index} has no weight_map, an object of files by the names of tensors")
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(set(places.values())):
        file = index.parent / name
        if Path(name).name != name:
            raise ValueError(f"{index}: {name!r} must be the name of a file next to it")
        if not file.is_file():
            raise ValueError(f"{index} names {name}, which is missing; fetch it")
        refuse_pointer(file)
        found = read(file)
        both = found.keys() & tensors.keys()
        if both:
            raise ValueError(f"{file}: {min(both)} is in another file, too")
        tensors |= found
    lacking = places.keys() - tensors.keys()
    if lacking:
        raise ValueError(f"{index} names {min(lacking)}, which none of its files holds")
    return tensors


def read_variables(opened: Opened, *, mesh: Mesh | None = None, dtype: Any = None, device: Any = None) -> Variables:
    """Reads the variables of an opened folder, tensor by tensor; `mesh` and `dtype` as in `load`. Without a mesh they
    are placed on `device`, or the first one."""
    of_params, of_buffers = opened.blueprint.shapes
    shapes = names_of(of_params) | names_of(of_buffers)
    traits = names_of(opened.blueprint.traits.params) | names_of(opened.blueprint.traits.buffers)
    alone = SingleDeviceSharding(device or jax.devices()[0])

    def sharding_of(path: str, shape: tuple[int, ...]) -> Any:
        return alone if mesh is None else named_sharding(shape, traits[path].axes, mesh)

    arrays: dict[str, jax.Array] = {}
    for move in opened.account.moves:
        values = move.transform.read(*(np.asarray(opened.tensors[name]) for name in move.theirs))
        for name, value in zip(move.ours, values, strict=True):
            path, repeat, shape = opened.slots[name]
            if value.shape != shape:
                raise ValueError(f"a tensor of shape {value.shape} became none of {shape}")
            kind = jnp.dtype(dtype or jnp.float32) if traits[path].decay else jnp.dtype(jnp.float32)
            # A copy, always: JAX may keep the memory that it is given, and the file may change.
            read = lambda index, value=value, kind=kind: np.array(value[index], kind, order="C")  # noqa: E731
            array = jax.make_array_from_callback(shape, sharding_of(path, shape), read)
            if repeat is not None:
                whole = sharding_of(path, shapes[path].shape)
                stack = arrays.pop(path, None)
                if stack is None:
                    stack = _maker_of_zeros(shapes[path].shape, kind, whole)()
                array = _setter_of_layers(whole)(stack, array, repeat)
            arrays[path] = array
    trees = [
        jax.tree.unflatten(jax.tree.structure(t), [arrays[x] for x in names_of(t)]) for t in opened.blueprint.shapes
    ]
    return Variables(*trees)


def find_tokenizer(directory: Path) -> Tokenizer | None:
    """Returns the tokenizer of a folder or GGUF file; None, with a warning, if its kind is unknown. Raises `ValueError`
    if its file is damaged, `OSError` if it cannot be read."""
    if directory.suffix == ".gguf":
        return _or_none(read_gguf(directory).tokenizer)
    files = [("tokenizer.json",), *PAIRS]
    found = any(all((directory / name).is_file() for name in names) for names in files)
    if not found and not any(directory.glob(WORLD)):
        return None
    if (directory / "tokenizer.json").is_file():
        read_json(directory / "tokenizer.json", dict)  # damaged, it is refused; of another kind, left out
    return _or_none(lambda: load_tokenizer(directory, lossless=False))


def _or_none(make: Callable[[], Tokenizer]) -> Tokenizer | None:
    try:
        return make()
    except ValueError as error:
        warn(f"{error}; the model is loaded without a tokenizer")
        return None


@functools.cache
def _maker_of_zeros(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)


@functools.cache
def _setter_of_layers(sharding: Any) -> Callable[..., jax.Array]:
    """Returns a function of (stack, layer, repeat) that sets one layer in place."""
    return jax.jit(
        lambda stack, layer, repeat: jax.lax.dynamic_update_index_in_dim(stack, layer, repeat, 0),
        donate_argnums=0,
        out_shardings=sharding,
    )
