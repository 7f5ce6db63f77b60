"""Small tensorflow-datasets directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter

Documents = Sequence[tuple[str | bytes, str]]
"""Text and subset of each document."""

FEATURES = tfds.features.FeaturesDict({"text": tfds.features.Text(), "subset": tfds.features.Text()})


class Toy(tfds.core.GeneratorBasedBuilder):
    """A name and features."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=FEATURES)

    def _split_generators(self, dl_manager):
        raise NotImplementedError

    def _generate_examples(self):
        raise NotImplementedError


def build(path: Path, splits: Mapping[str, Documents], *, n_shards: int = 3) -> Path:
    """Makes a data set of contiguous shards; its directory, `path/toy/1.0.0`."""
    directory = path / "toy" / "1.0.0"
    directory.mkdir(parents=True)
    infos = []
    for split, documents in splits.items():
        cuts = [i * len(documents) // n_shards for i in range(n_shards + 1)]
        for i in range(n_shards):
            file = directory / f"toy-{split}.array_record-{i:05d}-of-{n_shards:05d}"
            writer = ArrayRecordWriter(str(file), "group_size:1")
            for text, subset in documents[cuts[i] : cuts[i + 1]]:
                writer.write(FEATURES.serialize_example({"text": text, "subset": subset}))
            writer.close()
        lengths = [cuts[i + 1] - cuts[i] for i in range(n_shards)]
        n_bytes = sum(len(text) for text, _ in documents)
        infos.append(tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=n_bytes))
    info = Toy(data_dir=path, file_format="array_record").info
    info.set_splits(tfds.core.SplitDict(infos))
    info.write_to_directory(directory)
    return directory
