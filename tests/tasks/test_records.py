"""The extraction task of package metadata. Kills: answers that training has seen."""

import hashlib
import json
import re
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from jaxzoo.cli.tasks_records import main
from jaxzoo.tasks.record_documents import RecordsConfig, RecordSet
from jaxzoo.tasks.record_sources import DEBIAN, PYTHON, Record, debian_records, python_records

STATUS = """Package: libz1
Status: install ok installed
Maintainer: Mark Brown <broonie@debian.org>
Source: zlib (1:1.2)
Version: 1:1.2.13.dfsg-1
Conffiles:
 /etc/z 0123
Description: compression library - runtime
 zlib is a library: it compresses.
 Key: no field

Package: broken
Depends:
Version: 2

Package: python3-PyYAML
Version: 6.0-3
"""


def packages(n: int = 120, families: int = 60) -> list[Record]:
    """Packages in pairs with one source and version; nearly all have the same section."""
    records = []
    for i in range(n):
        family = i % families
        version = hashlib.sha256(f"v{family}".encode()).hexdigest()[:8]
        fields = {
            "Package": f"package-{i:03d}",
            "Section": "libs" if i % 10 else f"section-{i}",
            "Version": version,
            "Size": hashlib.sha256(f"s{i}".encode()).hexdigest()[:6],
            "Tag": "no",
            "Homepage": f"https://example.org/{version}" if i % 7 == 0 else f"https://example.org/{i}",
            "Priority": ("optional", "required")[i % 2],
            "Description": f"about {i} " + "many words " * 10,
        }
        records.append(Record(DEBIAN, fields["Package"], f"family-{family}", fields))
    return records


def record_set(**fields: Any) -> RecordSet:
    return RecordSet(packages(), RecordsConfig(**{"documents": 200, "seed": 3, **fields}))


def pairs(text: str) -> list[tuple[str, str]]:
    """Keys and values of all lines, by a separate regular expression."""
    return re.findall(r"^([^:\n]+): (.*)$", text, re.MULTILINE)


def test_the_answer_stands_in_the_document_under_its_key():
    """Kills: questions without an answer, or with several; another record's value; the answer in the question."""
    records = record_set()
    values = {(r.name, key): value for r in records.valid for key, value in r.fields.items()}
    examples = records.examples()
    assert len(examples) > 20
    for example in examples:
        document, question = example["text"].rsplit("\n", 1)
        name = example["doc_id"].removeprefix(f"{DEBIAN}/")
        assert example["value"] == values[name, example["key"]]
        assert question == f"{example['key']}:"
        assert {("Package", name), (example["key"], example["value"])} <= set(pairs(document))
        assert document.lower().count(example["value"].lower()) == 1
        assert len(document.encode()) <= 640


def test_nothing_asked_can_be_known_from_training():
    """Kills: a package, or one of its family, on both sides; a value of evaluation that training holds under its key;
    values that most records have, or that chance hits."""
    records = record_set()
    assert not {r.name for r in records.train} & {r.name for r in records.valid}
    assert not {r.group for r in records.train} & {r.group for r in records.valid}
    train = {line for row in records.training_documents() for line in row["text"].split("\n")}
    assert not any(f"{example['key']}: {example['value']}" in train for example in records.examples())
    assert {example["key"] for example in records.examples()} == {"Package", "Version", "Size", "Homepage", "Section"}
    assert not any(example["value"] in ("libs", "no") for example in records.examples())


def test_training_documents_end_in_answers():
    """Kills: answers that are not the document's, always in its order, or of fields that guessing finds."""
    orders = set()
    for row in record_set().training_documents():
        lines = row["text"].split("\n")
        n = next(i for i, line in enumerate(lines) if line in lines[:i])
        shown, answers = lines[:n], lines[n:]
        assert 1 <= len(answers) <= 8
        assert set(answers) <= set(shown)
        assert not {key for key, _ in pairs("\n".join(answers))} & {"Priority", "Tag", "Description"}
        orders.add(tuple(shown.index(answer) < shown.index(answers[0]) for answer in answers[1:]))
        assert row["meta"] == {"pile_set_name": DEBIAN}
    assert len(orders) > 4


def test_held_out_text_is_of_the_records_of_evaluation():
    """Kills: validation text that training has seen."""
    records = record_set(shuffled=0)
    lines = {f"{key}: {value}" for r in records.valid for key, value in r.fields.items()}
    rows = list(records.training_documents(held_out=True))
    assert len(rows) == 40
    assert {line for row in rows for line in row["text"].split("\n")} <= lines
    names = {r.name for r in records.valid}
    rows = list(record_set(mixed=False, shuffled=0).training_documents(held_out=True))
    assert {dict(pairs(row["text"]))["Package"] for row in rows} == names


def test_baselines_by_hand():
    """Kills: a guess from the evaluation's own values, a score that is not the task's."""
    records = record_set()
    document = "Size: abcdef\nVersion: V-0001\nSection: libs"
    examples = [
        {"doc_id": f"{DEBIAN}/x", "key": "Version", "value": "v-0001", "text": f"{document}\nVersion:"},
        {"doc_id": f"{DEBIAN}/x", "key": "Section", "value": "LIBS", "text": f"{document}\nSection:"},
    ]
    assert records.baselines(examples) == {"most_frequent": 0.5, "random_field": pytest.approx(1 / 3, abs=1e-4)}


class Distribution:
    """An installed package, as importlib has it."""

    def __init__(self, *fields: tuple[str, str]):
        self.metadata = Message()
        for key, value in fields:
            self.metadata[key] = value


def test_python_metadata_as_fields():
    """Kills: fields of many lines, dependencies of extras, unknown values, the long description, nameless packages."""
    package: Any = Distribution(
        ("Metadata-Version", "2.1"),
        ("Version", "1.0"),
        ("Name", "Py_YAML"),
        ("Summary", "loads\n  and dumps"),
        ("License", "UNKNOWN"),
        ("Project-URL", "homepage, https://a.org"),
        ("Classifier", "Topic :: Text"),
        ("Classifier", "Topic :: Markup"),
        ("Requires-Dist", "six>=1; python_version < '4'"),
        ("Requires-Dist", "pytest; extra == 'dev'".replace("'", '"')),
        ("Description", "long"),
    )
    nameless: Any = Distribution(("Version", "2"))
    (record,) = python_records([nameless, package, package])
    assert record == Record(PYTHON, "Py_YAML", "py-yaml", record.fields)
    assert next(iter(record.fields.items())) == ("Name", "Py_YAML")
    assert record.fields == {
        "Name": "Py_YAML",
        "Version": "1.0",
        "Summary": "loads and dumps",
        "Homepage": "https://a.org",
        "Topic": "Text, Markup",
        "Requires-Dist": "six>=1",
    }


def test_debian_status_as_fields(tmp_path):
    """Kills: continuation lines and empty fields taken for fields, a source with its version, a Python package that is
    one group by one name and another by Debian's."""
    (tmp_path / "status").write_text(STATUS)
    broken, libz, yaml = debian_records(tmp_path / "status")
    assert broken.fields == {"Package": "broken", "Version": "2"}
    assert (libz.name, libz.group, yaml.group) == ("libz1", "zlib", "pyyaml")
    assert list(libz.fields) == ["Package", "Maintainer", "Source", "Version", "Description"]
    assert libz.fields["Description"] == "compression library - runtime"
    assert debian_records(tmp_path / "none") == []


@pytest.fixture
def status(tmp_path: Path) -> Path:
    """A file of Debian's packages."""
    stanzas = ["\n".join(f"{key}: {value}" for key, value in record.fields.items()) for record in packages()]
    (tmp_path / "status").write_text("\n\n".join(stanzas) + "\n")
    return tmp_path / "status"


@pytest.fixture
def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides installed Python packages."""
    monkeypatch.setattr("jaxzoo.cli.tasks_records.python_records", list)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("no_python")
def test_the_command_writes_a_set_whole_and_again_the_same(status, tmp_path, capsys):
    """Kills: a path or a time in the output, a set that is replaced unasked, an unfinished one that is kept, empty
    files of a source that the machine lacks."""
    out = tmp_path / "set"
    flags = ["--out", str(out), "--dpkg-status", str(status), "--documents", "60"]
    unfinished = tmp_path / ".set.jaxzoo-unfinished"
    (unfinished / "train").mkdir(parents=True)
    (unfinished / "train" / "python.jsonl").write_text("half a li")
    assert main(flags) == 0
    first = files(out)
    assert not unfinished.exists()
    assert sorted(first) == ["manifest.json", "records.jsonl", "train/debian.jsonl", "valid/debian.jsonl"]
    assert str(tmp_path).encode() not in b"".join(first.values())
    assert "Debian packages: " in capsys.readouterr().out
    assert main(flags) == 2
    assert "exists; add --overwrite to replace it" in capsys.readouterr().err
    assert main([*flags, "--overwrite"]) == 0
    assert files(out) == first
    rows = [json.loads(line) for line in first["records.jsonl"].decode().splitlines()]
    manifest = json.loads(first["manifest.json"])
    assert manifest["records"][DEBIAN]["examples"] == len(rows)
    assert len(first["train/debian.jsonl"].splitlines()) == 60
    assert main([*flags[2:], "--out", str(tmp_path / "fda.jsonl")]) == 0
    assert (tmp_path / "fda.jsonl").read_bytes() == first["records.jsonl"]
