"""Reader of data sets in the format of tensorflow-datasets, as `jaxzoo data-build` makes them.

Features are `text` and, where the corpus has parts, `subset`; the files are array_record. Only data are read:
tensorflow-datasets' own reader imports the modules that a directory names. TensorFlow is not needed.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxzoo.config.checked import Count
from jaxzoo.config.json_files import decode_json, read_json
from jaxzoo.data.corpus.lines import TextDocument
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked
from jaxzoo.utils.extras import need
from jaxzoo.utils.whole_files import write_json

AT_ONCE = 64
"""Documents per read."""

_FEATURES = "tensorflow_datasets.core.features"
_DICTIONARY = f"{_FEATURES}.features_dict.FeaturesDict"
_TEXT = f"{_FEATURES}.text_feature.Text"
_AGAIN = "build the data set again with jaxzoo data-build"


class SplitInfo(NamedTuple):
    name: str
    shardLengths: list[str]
    """Documents in each file."""
    filepathTemplate: Literal["{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"]
    numBytes: str = "0"


class DatasetInfo(NamedTuple):
    """Fields of dataset_info.json that are read."""

    name: str
    version: str
    fileFormat: Literal["array_record"]
    splits: list[SplitInfo]


class BuiltData:
    """Documents of one version of a data set, in its directory or one above it that holds no other. `splits` gives the
    number of documents in each shard, by split; `validation` is called `valid`. Raises `ValueError` for a directory
    without such a data set, with several, with other features or damaged files."""

    def __init__(self, path: Path):
        for library in ("tensorflow_datasets", "array_record"):
            need(library, "reading a built corpus")
        self.path: Path = _find(path)
        check_metadata(self.path)
        features = _read_features(self.path / "features.json")
        file = self.path / "dataset_info.json"
        content = read_json(file, dict, remedy=_AGAIN)
        try:
            self._info = decode_json({key: content[key] for key in DatasetInfo._fields if key in content}, DatasetInfo)
            lengths = {split.name: tuple(map(int, split.shardLengths)) for split in self._info.splits}
            decode_json(list(itertools.chain(*lengths.values())), list[Count])
        except ValueError as error:
            raise ValueError(f"{file}: {error}; {_AGAIN}") from error
        for name in (self._info.name, *lengths):
            if not name.isidentifier():
                raise ValueError(f"{file}: the name {name!r} must have letters, digits and _ alone; {_AGAIN}")
        names = {"valid" if name == "validation" else name: name for name in lengths if sum(lengths[name])}
        self.splits: dict[str, tuple[int, ...]] = {split: lengths[name] for split, name in sorted(names.items())}
        if not self.splits:
            raise ValueError(f"{self.path} holds no documents; {_AGAIN}")
        self._files = {
            split: [
                self.path / f"{self._info.name}-{names[split]}.array_record-{i:05d}-of-{len(shards):05d}"
                for i in range(len(shards))
            ]
            for split, shards in self.splits.items()
        }
        missing = [file for files in self._files.values() for file in files if not file.is_file()]
        if missing:
            raise ValueError(f"{missing[0]} is missing; {_AGAIN}")
        import tensorflow_datasets as tfds

        kinds = tfds.features.FeaturesDict({name: tfds.features.Text() for name in features})
        self._decode: Any = kinds.deserialize_example_np
        self._readers: dict[Path, Any] = {}

    def identity(self) -> dict[str, Any]:
        """Returns name, version, and documents and size of every file, JSON-able."""
        splits = {
            name: [[n, file.stat().st_size, file.name] for n, file in zip(lengths, self._files[name], strict=True)]
            for name, lengths in self.splits.items()
        }
        return {"name": self._info.name, "version": self._info.version, "splits": splits}

    def shard(self, split: str, index: int) -> Iterator[TextDocument]:
        """Yields the documents of a shard, in order. Raises `ValueError` if its file is damaged."""
        first = sum(self.splits[split][:index])
        return self.read(split, range(first, first + self.splits[split][index]))

    def read(self, split: str, numbers: Iterable[int]) -> Iterator[TextDocument]:
        """Yields documents by their numbers in the split. Raises `ValueError` if a file is damaged."""
        lengths = self.splits[split]
        ends = list(itertools.accumulate(lengths))
        for i, found in itertools.groupby(numbers, key=lambda number: bisect.bisect_right(ends, number)):
            yield from self._read(self._files[split][i], lengths[i], (n - ends[i] + lengths[i] for n in found))

    def _read(self, file: Path, length: int, left: Iterator[int]) -> Iterator[TextDocument]:
        from array_record.python.array_record_module import ArrayRecordReader

        try:
            if file not in self._readers:
                self._readers[file] = ArrayRecordReader(str(file))
            reader = self._readers[file]
            if reader.num_records() != length:
                raise ValueError(f"it holds {reader.num_records()} documents, not {length}")
            while some := list(itertools.islice(left, AT_ONCE)):
                for record in reader.read(some):
                    document = self._decode(record)
                    text = document["text"].decode("utf-8", errors="replace")
                    subset = document.get("subset", b"")
                    yield TextDocument(text, subset.decode(), is_repaired=text.encode() != document["text"])
        except Exception as error:  # array_record and protobuf have no classes of their own
            raise ValueError(f"{file} is damaged: {' '.join(str(error).split())}; {_AGAIN}") from error


def _find(path: Path) -> Path:
    """Returns the directory of the only version of the only data set at or below a directory."""
    if not path.is_dir():
        raise ValueError(f"--data {path} is no directory; it must be one that jaxzoo data-build has made")
    for pattern in (".", "*", "*/*"):
        found = sorted(file.parent for file in path.glob(f"{pattern}/dataset_info.json"))
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"--data {path} holds several data sets; name one: {', '.join(map(str, found))}")
    raise ValueError(
        f"--data {path} holds no data set: there is no dataset_info.json; make it, or finish it, with jaxzoo data-build"
    )


def _read_features(file: Path) -> list[str]:
    """Returns the names of the features; raises `ValueError` unless all are texts, one of them `text`."""
    content = read_json(file, dict, remedy=_AGAIN)
    found = content.get("featuresDict")
    features = found.get("features") if isinstance(found, dict) else None
    texts = {name: {"pythonClassName": _TEXT, "text": {}} for name in features or () if name in ("text", "subset")}
    if "text" not in texts or content != {"pythonClassName": _DICTIONARY, "featuresDict": {"features": texts}}:
        raise ValueError(f"{file} must describe the features text and subset, texts of tensorflow-datasets; {_AGAIN}")
    return list(texts)


def write_metadata_checksums(path: Path) -> None:
    """Writes digests of the descriptions of a data set, and a checksum, into metadata.json."""
    file = path / "metadata.json"
    write_json(file, add_checksum({**read_json(file, dict), "sha256": _digests(path)}))


def check_metadata(path: Path) -> dict[str, Any]:
    """Returns the content of metadata.json, empty for data sets of other software.

    Raises `ValueError` if it, or a description of which it has the digest, is damaged.
    """
    file = path / "metadata.json"
    if not file.is_file() or not {"sha256", "checksum"} & read_json(file, dict, remedy=_AGAIN).keys():
        return {}
    content = read_checked(file, dict, remedy=_AGAIN)
    for name, digest in _digests(path).items():
        if content.get("sha256", {}).get(name) != digest:
            raise ValueError(f"{path / name} is damaged: it has another digest than was written; {_AGAIN}")
    return content


def _digests(path: Path) -> dict[str, str]:
    names = ("dataset_info.json", "features.json")
    return {name: file_sha256(path / name) for name in names}
