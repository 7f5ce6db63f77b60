"""A tensorflow-datasets directory of documents, as `python -m jaxzoo.data.build` makes it: shard by shard.

Features are `text` and, where the corpus has parts, `subset`; the files are array_record. TensorFlow is not needed.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.extras import need

AT_ONCE = 64
"""Documents that are read together."""

FEATURES = "tensorflow_datasets.core.features"
DICTIONARY, TEXT = f"{FEATURES}.features_dict.FeaturesDict", f"{FEATURES}.text_feature.Text"
"""The classes that features.json may name: tensorflow-datasets imports whatever stands there."""


class BuiltDocument(NamedTuple):
    """One document."""

    text: str
    subset: str
    is_repaired: bool
    """Whether U+FFFD stands in the text for what was no UTF-8."""


class BuiltData:
    """The documents of a directory.

    Attributes:
        splits: number of documents in each shard, by split; `validation` is called `valid`.

    Args:
        path: the directory of one version of a data set, or one above it that holds no other.

    Raises:
        ValueError: it holds no such data set, several, one of other features, or one whose files are missing.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path):
        for library in ("tensorflow_datasets", "array_record"):
            need(library, "reading a built corpus")
        import tensorflow_datasets as tfds

        self.path = _find(path)
        _check_features(self.path / "features.json")
        try:
            self._builder: Any = tfds.builder_from_directory(self.path)
            features = set(self._builder.info.features)
            file_format = self._builder.info.file_format.value
        except (ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
            raise ValueError(f"{self.path} is no data set that can be read: {error}; build it again") from error
        if "text" not in features:
            raise ValueError(f"{self.path}: its features, {', '.join(sorted(features))}, must include text")
        if file_format != "array_record":
            raise ValueError(f"{self.path}: its files must be array_record, not {file_format}; build it again")
        self._has_subsets = "subset" in features
        infos = {"valid" if name == "validation" else name: info for name, info in self._builder.info.splits.items()}
        self._infos = {name: infos[name] for name in sorted(infos) if infos[name].num_examples}
        self.splits = {name: tuple(info.shard_lengths) for name, info in self._infos.items()}
        if not self.splits:
            raise ValueError(f"{self.path} holds no documents; build it again")
        for name in self.splits:
            for file in self.files(name):
                if not file.is_file():
                    raise ValueError(f"{file} is missing; build the data set again")

    def files(self, split: str) -> list[Path]:
        """Files of the shards, in order."""
        return [Path(file) for file in self._infos[split].filepaths]

    def identity(self) -> dict[str, Any]:
        """Identity of the data, JSON-able: name, version, and documents and size of every file."""
        info = self._builder.info
        splits = {
            name: [[n, file.stat().st_size, file.name] for n, file in zip(lengths, self.files(name), strict=True)]
            for name, lengths in self.splits.items()
        }
        return {"name": info.name, "version": str(info.version), "splits": splits}

    def shard(self, split: str, index: int) -> Iterator[BuiltDocument]:
        """The documents of a shard, in order.

        Raises:
            ValueError: its file is damaged.
        """
        begin = sum(self.splits[split][:index])
        return self.read(split, range(begin, begin + self.splits[split][index]))

    def read(self, split: str, numbers: Iterable[int]) -> Iterator[BuiltDocument]:
        """Documents by their numbers in the split.

        Raises:
            ValueError: a file is damaged.
        """
        source = self._builder.as_data_source(self._infos[split].name)
        left = iter(numbers)
        while some := list(itertools.islice(left, AT_ONCE)):
            try:
                found = source.__getitems__(some)
            except (RuntimeError, ValueError, IndexError, OSError) as error:
                raise ValueError(self._damage(split, some, error)) from error
            for document in found:
                subset = document["subset"].decode() if self._has_subsets else ""
                yield _document(document["text"], subset)

    def _damage(self, split: str, numbers: Sequence[int], error: Exception) -> str:
        """Names the files of these documents."""
        begin, files = 0, []
        for file, length in zip(self.files(split), self.splits[split], strict=True):
            if any(begin <= number < begin + length for number in numbers):
                files.append(str(file))
            begin += length
        told = " ".join(str(error).split())
        return f"{' or '.join(files)} is damaged: {told}; build the data set again"


def _find(path: Path) -> Path:
    """The directory of the one version of the one data set in a directory, which may be that itself."""
    if not path.is_dir():
        raise ValueError(f"--data {path} is no directory; it must be one that python -m jaxzoo.data.build has made")
    for pattern in (".", "*", "*/*"):
        found = sorted(file.parent for file in path.glob(f"{pattern}/dataset_info.json"))
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"--data {path} holds several data sets; name one: {', '.join(map(str, found))}")
    raise ValueError(
        f"--data {path} holds no data set: there is no dataset_info.json; make it, or finish it, with "
        "python -m jaxzoo.data.build"
    )


def _check_features(file: Path) -> None:
    """Raises `ValueError` unless all features are texts; nothing that the file names is imported."""
    rebuild = "build the data set again with python -m jaxzoo.data.build"
    try:
        content = json.loads(file.read_text())
        features = content["featuresDict"]["features"]
        allowed = {name: {"pythonClassName": TEXT, "text": {}} for name in features}
    except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise ValueError(f"{file} is no description of features that can be read: {error}; {rebuild}") from error
    if content != {"pythonClassName": DICTIONARY, "featuresDict": {"features": allowed}}:
        wrong = [f"feature {name!r}" for name in allowed if features[name] != allowed[name]]
        raise ValueError(f"{file}: {wrong[0] if wrong else 'the whole'} is no text of tensorflow-datasets; {rebuild}")


def _document(data: bytes, subset: str) -> BuiltDocument:
    try:
        return BuiltDocument(data.decode("utf-8"), subset, is_repaired=False)
    except UnicodeDecodeError:
        return BuiltDocument(data.decode("utf-8", errors="replace"), subset, is_repaired=True)
