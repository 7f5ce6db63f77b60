"""The last step of a build: shards get their names, and metadata that tensorflow-datasets reads."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.data.corpus.built import write_metadata_checksums
from jaxzoo.data.corpus.shards import WorkDirectory
from jaxzoo.data.corpus.sources import Skipped

SPLITS = ("train", "valid", "test")


class Shard(NamedTuple):
    """A shard that lies in the work directory."""

    file: Path
    documents: int
    n_bytes: int
    """Size of the file."""


@dataclasses.dataclass
class Gathered:
    """Sums over the notes of all pieces."""

    shards: dict[str, list[Shard]]
    """By split, in the order of the inputs."""
    subsets: dict[str, dict[str, dict[str, int]]]
    """`documents` and `bytes` of text, by split and subset."""
    skipped: Skipped


def finish(out: str, dataset: str, version: str, pieces: Sequence[str]) -> None:
    """Makes `OUT/<dataset>/<version>` of the work directory: whole or not at all.

    Args:
        out: the build's directory.
        dataset: name of the data set.
        version: of it.
        pieces: names of all pieces, which are done, in the order of the inputs.

    Raises:
        ValueError: there is no document to train on.
    """
    work = WorkDirectory(Path(out, "work"))
    gathered = _gather(work, pieces, out)
    if "train" not in gathered.shards:
        raise ValueError(f"{out}: the inputs of --paths must hold a document to train on, but they hold none")
    _name_shards(work, dataset, gathered)
    _write_metadata(work, dataset, gathered)
    directory = Path(out, dataset, version)
    directory.parent.mkdir(exist_ok=True)
    os.rename(work.shards, directory)


def _gather(work: WorkDirectory, pieces: Sequence[str], out: str) -> Gathered:
    gathered = Gathered({}, {}, Skipped())
    for piece in pieces:
        notes = list(work.section_notes(piece))
        if not notes or not notes[-1].ended:
            raise ValueError(f"{work.notes} lacks a note of the piece {piece}; remove {out} and build again")
        for section, note in enumerate(notes):
            gathered.skipped = gathered.skipped.plus(note.skipped)
            for split, held in note.splits.items():
                n_documents = sum(documents for documents, _ in held.subsets.values())
                shard = Shard(work.shard(piece, section, split), n_documents, held.file_bytes)
                gathered.shards.setdefault(split, []).append(shard)
                totals = gathered.subsets.setdefault(split, {})
                for subset, (documents, n_bytes) in held.subsets.items():
                    total = totals.setdefault(subset, {"documents": 0, "bytes": 0})
                    total["documents"] += documents
                    total["bytes"] += n_bytes
    gathered.subsets = {split: dict(sorted(totals.items())) for split, totals in sorted(gathered.subsets.items())}
    return gathered


def _name_shards(work: WorkDirectory, dataset: str, gathered: Gathered) -> None:
    """Renames shards to `<dataset>-<split>.array_record-NNNNN-of-MMMMM`; a killed call may have renamed some."""
    for split, shards in gathered.shards.items():
        for i, shard in enumerate(shards):
            if shard.file.exists():
                if shard.file.stat().st_size != shard.n_bytes:
                    raise ValueError(f"{shard.file} is damaged: it must have {shard.n_bytes:,} bytes; remove the build")
                name = f"{dataset}-{split}.array_record-{i:05d}-of-{len(shards):05d}"
                os.replace(shard.file, work.shards / name)


def _write_metadata(work: WorkDirectory, dataset: str, gathered: Gathered) -> None:
    import tensorflow_datasets as tfds

    from jaxzoo.data.corpus.builders import BUILDERS, features

    builder: Any = BUILDERS[dataset](data_dir=os.fspath(work.path), file_format="array_record")
    info = tfds.core.DatasetInfo(
        builder=builder,
        description=builder.summary,
        features=features(),
        metadata=tfds.core.MetadataDict(subsets=gathered.subsets, skipped=dataclasses.asdict(gathered.skipped)),
    )
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    splits = [
        tfds.core.SplitInfo(
            name=split, shard_lengths=[s.documents for s in shards], num_bytes=sum(s.n_bytes for s in shards)
        )
        for split in SPLITS
        if (shards := gathered.shards.get(split))
    ]
    info.set_splits(tfds.core.SplitDict(splits))
    info.write_to_directory(work.shards)
    write_metadata_checksums(work.shards)
