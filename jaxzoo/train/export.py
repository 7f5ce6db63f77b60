"""Export of a model's variables as one safetensors file: for other programs, `--init-from`, and publication.

Arrays have the dtypes of the model, or matrices are bfloat16 (`rounded`) and read back as float32. Names are paths
joined by dots, such as `stacks.0.blocks.1.mixer.q.kernel`; a repeated period of layers is one array with a leading axis
of repeats. The metadata are strings: `config` (the experiment, JSON), `step`, `tokenizer` (fingerprint; empty: no
text), `digest` (of all variables as they are stored, `jaxzoo.utils.checksums.variables_digest`), `buffers` (names of
those that do not learn, JSON) and `jaxzoo_version`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo import __version__
from jaxzoo.config.config_io import Json
from jaxzoo.config.json_files import parse_json, refuse_pointer
from jaxzoo.models.adapters import stored_lora
from jaxzoo.models.blueprint import Variables, names_of
from jaxzoo.train.checkpoint import CheckpointManifest, tokenizer_of
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.utils.checksums import ArrayDigest, variables_digest
from jaxzoo.utils.whole_files import replacing

EXTENSION = ".safetensors"


class ExportedFile(RunDirectory):
    """An exported file as a run with config and model only."""

    def __init__(self, file: Path):
        super().__init__(file)
        self.config = self.model = file

    def read_config(self) -> Json:
        """The experiment. Raises as `read_header` does."""
        return read_header(self.model)[0].config


def write_portable(file: Path, variables: Variables, seal: CheckpointManifest) -> None:
    """Writes the variables of a model with the manifest of their checkpoint, one array at a time."""
    config = seal.config
    if stored_lora(config) is not None:  # the adapters are merged
        config = {**config, "train": {k: v for k, v in config["train"].items() if not k.startswith("lora_")}}
    metadata = {
        "jaxzoo_version": __version__,
        "config": json.dumps(config),
        "step": str(seal.step),
        "tokenizer": tokenizer_of(seal.cursor),
        "digest": variables_digest(variables),
        "buffers": json.dumps(sorted(names_of(variables.buffers, "."))),
    }
    named = names_of(variables.params, ".") | names_of(variables.buffers, ".")
    save_arrays(file, named, metadata)


def save_arrays(file: Path, named: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Writes arrays by name, whole or not at all, the same bytes for the same content. Raises OSError."""
    import safetensors.numpy

    arrays = {name: np.require(x, requirements="C") for name, x in named.items()}
    try:
        with replacing(file) as place:
            place.touch()
            mode = place.stat().st_mode  # the library makes files private, whatever the umask
            safetensors.numpy.save_file(arrays, place, metadata=metadata)
            place.chmod(mode)
            _sort_metadata(place)
    except safetensors.SafetensorError as error:
        raise OSError(f"{file}: {error}") from None


def _sort_metadata(file: Path) -> None:
    """Sorts the metadata in the header of a file: the library writes them in a different order at each call."""
    with file.open("r+b") as content:
        size = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= size
        content.seek(8)
        content.write(text.ljust(size))


def read_header(file: Path) -> tuple[CheckpointManifest, str]:
    """Reads the metadata of a file: a manifest (with sums of 0 in its digests) and the digest of all variables.

    Raises `ValueError` if the file was not written by `write_portable`.
    """
    with opened(file) as content:
        metadata = content.metadata() or {}
        shapes = {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
    try:
        buffers = parse_json(metadata["buffers"], tuple[str, ...], where="buffers")
        kinds = {name: "buffers" if name in buffers else "params" for name in shapes}
        sums = {f"{kinds[name]}/{name.replace('.', '/')}": ArrayDigest(shape, "", 0) for name, shape in shapes.items()}
        cursor = {"fingerprint": f"{metadata['tokenizer']}:exported"} if metadata["tokenizer"] else {}
        seal = CheckpointManifest(
            int(metadata["step"]), cursor, parse_json(metadata["config"], dict, where="config"), 0, sums
        )
        return seal, metadata["digest"]
    except (LookupError, ValueError):
        raise ValueError(f"{file} is no model of jaxzoo: it lacks the metadata of jaxzoo export") from None


def read_portable(file: Path, digest: str, abstract: Variables) -> Variables:
    """Reads the variables of a file one by one into their shardings.

    Args:
      digest: `variables_digest` of the variables that were written.
      abstract: its names and shapes, with dtypes and shardings to read into; any mesh will do.

    Raises:
      ValueError: an array has another dtype.
      OSError: it cannot be read, or holds other numbers than were written.
    """
    import safetensors

    with opened(file) as content:

        def read(path: Any, x: jax.ShapeDtypeStruct) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            try:
                array = content.get_tensor(name)
            except (safetensors.SafetensorError, OSError, TypeError, ValueError) as error:  # such as an unknown dtype
                raise OSError(f"{file}: variable {name} cannot be read: {error}") from None
            if array.dtype != x.dtype and (array.dtype, x.dtype) != (jnp.bfloat16, jnp.float32):
                raise ValueError(f"{file}: variable {name} is {array.dtype}, and {x.dtype} in this model")
            return jax.make_array_from_callback(x.shape, x.sharding, lambda index: array[index])

        variables = Variables(*(jax.tree.map_with_path(read, tree) for tree in abstract))
    if variables_digest(variables) != digest:
        raise OSError(
            f"{file} holds other numbers than were written: its arrays do not have the digest in its metadata"
        )
    return jax.tree.map(lambda x, like: x.astype(like.dtype), variables, abstract)


def rounded(variables: Variables, traits: Variables) -> Variables:
    """The variables, with matrices in bfloat16; norms, biases, decays and buffers keep their dtype."""
    params = jax.tree.map(lambda x, of: x.astype(jnp.bfloat16) if of.decay else x, variables.params, traits.params)
    return variables._replace(params=params)


def opened(file: Path) -> Any:
    """Opens a safetensors file, for use in a `with` block."""
    import safetensors

    if not file.is_file():
        raise ValueError(f"{file} is no file")
    refuse_pointer(file)
    try:
        return safetensors.safe_open(file, framework="np")
    except safetensors.SafetensorError as error:
        raise OSError(f"{file} is damaged, or no safetensors file: {error}") from None
