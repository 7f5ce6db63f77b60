"""Corpora as tensorflow-datasets builders with array_record and without TensorFlow.

`python -m jaxzoo.data.build` takes name, version, features and description from here, and writes the shards itself, in
parallel and restartable. `download_and_prepare` of these classes makes the same documents in one process, shuffled and
without a validation split. This module imports tensorflow_datasets: import it only where it is needed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from jaxzoo.data.corpus.sources import SOURCES, Layout, Skipped, read_documents


def features() -> tfds.features.FeaturesDict:
    """Features of every corpus: `text`, and `subset`, which is empty where the corpus has no parts."""
    return tfds.features.FeaturesDict({"text": tfds.features.Text(), "subset": tfds.features.Text()})


class TextCorpus(tfds.core.GeneratorBasedBuilder):
    """Documents in the user's own files.

    Args:
        paths: the files of each split.
        fields: layout of the files; None: every file is one document.
        **options: of `tfds.core.DatasetBuilder`, such as `data_dir` and `file_format="array_record"`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "Documents with text and subset."}  # noqa: RUF012 declared so by the base class
    fields: Layout = None
    summary = "Documents in files of text or lines of JSON."

    def __init__(self, *, paths: Mapping[str, list[Path]] | None = None, fields: Layout = None, **options: Any) -> None:
        self._paths = dict(paths or {})
        self._fields = fields or self.fields
        super().__init__(**options)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(builder=self, description=self.summary, features=features())

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(files) for split, files in self._paths.items()}

    def _generate_examples(self, files: list[Path]) -> Iterator[tuple[str, dict[str, str]]]:
        for (file, line), document in read_documents(files, self._fields, Skipped()):
            yield f"{file}:{line}", {"text": document.text, "subset": document.subset}


class ThePile(TextCorpus):
    """The Pile (Gao et al., 2020) from local `jsonl.zst` files; a subset is a `pile_set_name`."""

    fields = SOURCES["pile"].fields
    summary = "The Pile (Gao et al., 2020, arXiv 2101.00027), with the name of the subset of every document."


class SlimPajama(TextCorpus):
    """SlimPajama (Soboleva et al., 2023) from local `jsonl.zst` files; a subset is a `redpajama_set_name`."""

    fields = SOURCES["slimpajama"].fields
    summary = "SlimPajama (Soboleva et al., 2023), with the name of the subset of every document."


class Dna(TextCorpus):
    """Bases from local FASTA files, in documents of at most 2^20; a subset is a sequence, such as a chromosome."""

    fields = SOURCES["fasta"].fields
    summary = "Bases (A, C, G, T, N) of sequences in FASTA files, without the gaps of the assembly."


class LabelledSequences(TextCorpus):
    """Sequences with a class each from local files in the layout of GenomicBenchmarks; a subset is a class."""

    fields = SOURCES["labelled"].fields
    summary = "Sequences with a class each, whose name is the subset, in the splits of their folders."


BUILDERS = {builder.name: builder for builder in (TextCorpus, ThePile, SlimPajama, Dna, LabelledSequences)}
"""Builder by the name of the data set."""
