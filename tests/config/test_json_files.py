"""JSON files. Kills: a traceback or an ignored field for a damaged file."""

import dataclasses
import math
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from jaxzoo.config import json_files
from jaxzoo.config.checked import Checked, NonNegativeInt, PositiveInt
from jaxzoo.config.json_files import MOST_DEPTH, parse_json, read_json, read_json_lines


class Place(NamedTuple):
    file: NonNegativeInt
    line: int = 7


@dataclasses.dataclass(frozen=True)
class Note(Checked):
    place: Place
    kind: Literal["a", 1]
    counts: dict[str, list[float | None]]
    pair: tuple[int, str]
    rest: tuple[Any, ...] = ()
    name: str | None = None
    both: int | str = 0

    def __post_init__(self) -> None:
        self.require("both", self.both != 3, "must not be 3")


FULL = '{"place": [1, 2], "kind": "a", "counts": {"x": [1, null, NaN]}, "pair": [1, "y"], "rest": [{"z": 1}]}'


def test_declared_values_come_back(tmp_path):
    """Kills: lists where a tuple is declared, integers where floats are, defaults that are lost."""
    (tmp_path / "a.json").write_text(FULL)
    note = read_json(tmp_path / "a.json", Note)
    assert note.place == Place(1, 2)
    assert (note.pair, note.rest, note.name, note.both) == ((1, "y"), ({"z": 1},), None, 0)
    assert type(note.counts["x"][0]) is float
    assert math.isnan(note.counts["x"][2])
    assert parse_json('{"file": 3}', Place, where="x") == Place(3, 7)
    (tmp_path / "rows").write_bytes(b'{"file": 1}\n{"file": 2}')
    assert list(read_json_lines(tmp_path / "rows", Place)) == [Place(1), Place(2)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"kind": "a"', '"kind": true', "kind=True must be one of 'a', 1"),
        ('"kind": "a", ', "", "kind is missing"),
        ('"kind"', '"kinds"', "Note has no field 'kinds'; did you mean 'kind'"),
        ('"kind"', '"pair"', "field 'pair' must occur once"),
        ("[1, 2]", "[1]", r"place=\[1\] must be an object"),
        ("[1, 2]", '{"file": -1}', "place.file=-1 must not be negative"),
        ("[1, 2]", '{"file": 1e0}', "place.file=1.0 must be an integer"),
        ("[1, 2]", '{"file": true}', "place.file=True must be an integer"),
        ("[1, 2]", f'{{"file": 1{"0" * 30}}}', r"place.file=10+ must be below 2\^31"),
        ("null", '"1"', "counts.x.1='1' must be a number or None"),
        ('[1, "y"]', "[1]", r"pair=\[1\] must have 2 items"),
        ('"rest"', '"name": 3, "rest"', "name=3 must be a string"),
        ('"rest"', '"both": [], "rest"', r"both=\[\] must be an integer or a string"),
        ('"rest"', '"both": 3, "rest"', "Note.both=3 must not be 3"),
        (FULL, "3", "3 must be an object"),
        (FULL, "[" * 100_000, f"must be nested at most {MOST_DEPTH} levels deep"),
        ('{"z": 1}', "[" * MOST_DEPTH + "]" * MOST_DEPTH, f"must be nested at most {MOST_DEPTH} levels deep"),
        (FULL, FULL[:-1], "must be JSON: "),
        (FULL, "1" * 5000, "'1+[.]+ has too many digits"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(tmp_path, old, new, message):
    """Kills: a traceback, a value of another type, a field that is ignored, a message of many lines."""
    assert old in FULL
    file = tmp_path / "note.json"
    file.write_text(FULL.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"note.json: {message}.*; do this$") as caught:
        read_json(file, Note, remedy="do this")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_sizes_are_bounded(tmp_path, monkeypatch):
    """Kills: a file that is read whole, however large, and a line that is."""
    monkeypatch.setattr(json_files, "MOST_BYTES", 100)
    file = tmp_path / "a"
    file.write_text(" " * 98 + "{}\n{}")
    with pytest.raises(ValueError, match="a: must have at most 100 bytes"):
        read_json(file, dict)
    with pytest.raises(ValueError, match="a:1: must have at most 100 bytes"):
        list(read_json_lines(file, dict))
    file.write_bytes(b"{}\n\xff")
    with pytest.raises(ValueError, match="a:2: must be UTF-8, but byte 0 is not"):
        list(read_json_lines(file, dict))
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent", dict)
    assert parse_json("[1, 2]", list[Annotated[PositiveInt, "a note"]], where="x") == [1, 2]
    with pytest.raises(ValueError, match="x: 1=0 must be positive"):
        parse_json("[1, 0]", list[PositiveInt], where="x")
