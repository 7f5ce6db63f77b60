"""Extraction task on package metadata, which every machine has, after FDA as used in Based (sec. 6, App. E.3).

A document lists fields of a package's metadata in random order; at its end one field is queried, and the model must
copy its value. An example of evaluation, with the fields of lm_eval's task `fda`:

    {"doc_id": "Debian packages/apt", "key": "Installed-Size", "value": "4232",
     "text": "Replaces: apt-transport-https (<< 1.5~alpha4~), apt-utils (<< 1.3~exp2~)\\nPackage: apt\\n…\\n
              Installed-Size: 4232\\nRecommends: ca-certificates\\nSection: admin\\nInstalled-Size:"}

A training document is such a document, followed by some of its fields again, so that a small model can learn the form
(`{document}\\n{key}: {value}\\n{key}: {value}…`). Unless `mixed` is off, each of its values is from another random
record: a model could memorize some thousand packages, but not the values of a mixed document. In a share `shuffled` of
the documents the letters and digits of each word of the values are permuted (`libc6` becomes `6bicl`), so that a model
cannot complete a value from memory either.

    {"text": "Section: admin\\n…\\nVersion: 3.134\\nInstalled-Size: 686\\nDepends: passwd\\nVersion: 3.134",
     "meta": {"pile_set_name": "Debian packages"}}

Rules that make the answers depend on recall, not on knowledge:

- a package, and all packages of its source, are in one split: training or evaluation;
- no queried value of evaluation is a value of the same key in a training record;
- at most 5 % of the records of its source have a queried value under its key;
- in evaluation a value occurs once in its document, under its key;
- queried values have 4 to 40 bytes: too long to be right by chance, short enough for the 48 tokens of an answer.
"""

import collections
import dataclasses
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from jaxzoo.config.checked import Checked, Fraction, PositiveInt, Rule, Seed
from jaxzoo.data.corpus.files import hash_share
from jaxzoo.tasks.record_sources import Record

MAX_SHARE = 0.05
"""Largest share of the records with a key that may have a queried value."""

VALUE_BYTES = (4, 40)
"""Shortest and longest queried value."""

MIN_RECORDS = 50
"""Fewest records, with at least one question each, of a set."""

_WORD = re.compile(r"[^\W_]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsConfig(Checked):
    """Settings of the documents that are made of records."""

    documents: PositiveInt = 20_000
    """Training documents; the records of training take turns, so that each is seen in many forms."""
    fields_per_document: PositiveInt = 12
    """Most fields of a record in a document."""
    questions: PositiveInt = 8
    """Most queried fields per document: at the end of a training document, one per example in evaluation."""
    document_bytes: PositiveInt = 640
    """Longest document, without questions and answers."""
    mixed: bool = True
    """Give each field of a training document the value of another record; evaluation has true records only."""
    shuffled: Fraction = 0.5
    """Share of the training documents in which letters and digits of each word of the values are permuted."""
    valid_fraction: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] = 0.2
    """Share of the groups of records, chosen by a hash, that are kept for evaluation."""
    seed: Seed = 0
    """Seed of the split and of the documents."""


class RecordSet:
    """Training documents and evaluation examples of records: a pure function of these and the config. `train` and
    `valid` hold the records of each split. Raises `ValueError` if too few records have values that can be asked for."""

    def __init__(self, records: Sequence[Record], config: RecordsConfig):
        self._config = config
        self._counts = _counted(_values(records))
        in_order = sorted(records, key=lambda record: (record.source, record.name, sorted(record.fields.items())))
        usable = [record for record in in_order if self._askable(record)]
        if len(usable) < MIN_RECORDS:
            raise ValueError(
                f"{len(usable)} records with values to ask for must be at least {MIN_RECORDS}; run it where more "
                "Python or Debian packages are installed, such as in an environment with jaxzoo's extras"
            )
        shares = [hash_share(f"{config.seed}/{record.group}".encode()) for record in usable]
        is_valid = [share < config.valid_fraction for share in shares]
        self.train: list[Record] = [record for record, valid in zip(usable, is_valid, strict=True) if not valid]
        self.valid: list[Record] = [record for record, valid in zip(usable, is_valid, strict=True) if valid]
        config.require("valid_fraction", bool(self.train and self.valid), "must leave records on both sides")
        self._values = {False: _values(self.train), True: _values(self.valid)}
        self._train_counts = _counted(self._values[False])

    def training_documents(self, *, held_out: bool = False) -> Iterator[dict[str, Any]]:
        """Returns rows of the training text; with `held_out`, from the records of evaluation in the same form."""
        config = self._config
        side = self.valid if held_out else self.train
        n = max(round(config.documents * config.valid_fraction), 1) if held_out else config.documents
        for index in range(n):
            rng = random.Random(f"{config.seed}/{'valid' if held_out else 'train'}/{index}")
            record = side[index % len(side)]
            if config.mixed:
                values = self._values[held_out]
                record = record._replace(fields={key: rng.choice(values[record.source, key]) for key in record.fields})
            keys = self._keys(record, rng)
            asked = [key for key in keys if key in self._askable(record)]
            if rng.random() < config.shuffled:
                record = _shuffled(record, rng)
            asked = rng.sample(asked, min(config.questions, len(asked)))
            text = "\n".join(_line(record, key) for key in (*keys, *asked))
            yield {"text": text, "meta": {"pile_set_name": record.source}}

    def examples(self) -> list[dict[str, str]]:
        """Returns rows of evaluation, with the fields `doc_id`, `key`, `value` and `text`."""
        rows = []
        for record in self.valid:
            rng = random.Random(f"{self._config.seed}/questions/{record.source}/{record.name}")
            counts = {key: self._train_counts[record.source, key] for key in self._askable(record)}
            keys = [key for key, seen in counts.items() if record.fields[key] not in seen]
            for key in rng.sample(keys, min(self._config.questions, len(keys))):
                kept = self._keys(record, rng, key)
                value = record.fields[key]
                document = "\n".join(_line(record, each) for each in kept)
                if key in kept and document.lower().count(value.lower()) == 1:
                    text = f"{document}\n{key}:"
                    doc_id = f"{record.source}/{record.name}"
                    rows.append({"doc_id": doc_id, "key": key, "value": value, "text": text})
        return rows

    def baselines(self, examples: Sequence[Mapping[str, str]]) -> dict[str, float]:
        """Returns accuracies (as the task is scored) without reading question or document: `most_frequent`, the most
        common training value of the key; `random_field`, the value of a random field of the document."""
        scores = {"most_frequent": 0.0, "random_field": 0.0}
        for example in examples:
            source = example["doc_id"].split("/")[0]
            guesses = self._train_counts[source, example["key"]]
            guess = min(guesses, key=lambda value: (-guesses[value], value)) if guesses else ""
            lines = [line.partition(": ")[2] for line in example["text"].split("\n")[:-1] if line]
            scores["most_frequent"] += example["value"].lower() in guess.lower()
            scores["random_field"] += sum(example["value"].lower() in value.lower() for value in lines) / len(lines)
        return {name: round(score / len(examples), 4) for name, score in scores.items()}

    def _askable(self, record: Record) -> list[str]:
        """Returns the keys of a record whose values are neither too common nor of a wrong length."""
        low, high = VALUE_BYTES
        found = []
        for key, value in record.fields.items():
            counts = self._counts[record.source, key]
            if counts[value] <= max(MAX_SHARE * counts.total(), 1) and low <= len(value.encode()) <= high:
                found.append(key)
        return found

    def _keys(self, record: Record, rng: random.Random, asked: str | None = None) -> list[str]:
        """Returns the keys that a document shows, in order, including the asked one."""
        room = self._config.document_bytes
        (name, *rest) = record.fields
        first = [name] if asked in (None, name) else [name, asked]
        rest = [key for key in rest if key != asked]
        kept: list[str] = []
        for key in [*first, *rng.sample(rest, len(rest))]:
            size = len(f"{_line(record, key)}\n".encode())
            if len(kept) < max(self._config.fields_per_document, len(first)) and size <= room:
                kept.append(key)
                room -= size
        return rng.sample(kept, len(kept))


def _line(record: Record, key: str) -> str:
    return f"{key}: {record.fields[key]}"


def _shuffled(record: Record, rng: random.Random) -> Record:
    """Permutes the characters of each word of a record's values."""

    def word(found: re.Match[str]) -> str:
        return "".join(rng.sample(found[0], len(found[0])))

    return record._replace(fields={key: _WORD.sub(word, value) for key, value in record.fields.items()})


def _values(records: Sequence[Record]) -> dict[tuple[str, str], list[str]]:
    values: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for record in records:
        for key, value in record.fields.items():
            values[record.source, key].append(value)
    return values


def _counted(values: Mapping[tuple[str, str], list[str]]) -> dict[tuple[str, str], collections.Counter[str]]:
    """Counts the records with each value, by source and key."""
    counts = {place: collections.Counter(found) for place, found in values.items()}
    return collections.defaultdict(collections.Counter, counts)
