"""The tensors of a model's folder, whichever of the usual files hold them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxzoo.interop.safetensors_file import read_safetensors
from jaxzoo.interop.torch_pickle import read_torch_file
from jaxzoo.json_files import read_json

READERS: Mapping[str, Callable[[Path], dict[str, np.ndarray]]] = {
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_torch_file,
}
"""Files in the order in which they are looked for, each also as several with an index (`<name>.index.json`)."""


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder by name, as read-only views of its mapped files.

    Raises:
      ValueError: there are none, a file is missing or damaged, or an index disagrees with its files.
      OSError: a file cannot be read.
    """
    for name, read in READERS.items():
        if (directory / name).is_file():
            return read(directory / name)
        index = directory / f"{name}.index.json"
        if index.is_file():
            return _read_several(index, read)
    released = sorted(directory.glob("*.pth"))
    if len(released) > 1:
        raise ValueError(f"{directory} holds {len(released)} models, such as {released[0].name}; keep one .pth file")
    if released:
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
        found = read(file)
        both = found.keys() & tensors.keys()
        if both:
            raise ValueError(f"{file}: {min(both)} is in another file, too")
        tensors |= found
    lacking = places.keys() - tensors.keys()
    if lacking:
        raise ValueError(f"{index} names {min(lacking)}, which none of its files holds")
    return tensors
