"""Random damages of a file: bits, cuts, insertions; of JSON also types, keys, sizes and depth."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    "",
    "x",
    "../x",
    [],
    {},
    [[]],
    {"a": 1},
)
"""Values of other types and sizes."""


def damages(data: bytes, seed: str, n: int) -> Iterator[tuple[str, bytes]]:
    """Yields n damages of the content of a file, each with a name; a pure function of the arguments."""
    rng = random.Random(seed)
    kinds: list[Callable[[bytes, random.Random], bytes]] = [
        _flip,
        _flip,
        _flip,
        _noise,
        _cut,
        _remove,
        _insert,
        _double,
    ]
    values = _rows(data)
    if values:
        kinds += [_value, _value, _value, _without_key, _other_key, _more_keys, _deep, _swap]
    fixed = [("empty", b""), ("deep", b"[" * 100_000), ("zeros", bytes(len(data)))]
    yield from fixed[:n]
    for i in range(n - len(fixed)):
        kind = kinds[i % len(kinds)]
        yield kind.__name__.strip("_"), kind(data, rng)


def _flip(data: bytes, rng: random.Random) -> bytes:
    return _replaced(data, rng.randrange(max(len(data), 1)), lambda byte: byte ^ 1 << rng.randrange(8))


def _noise(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(2, 20)):
        data = _replaced(data, rng.randrange(max(len(data), 1)), lambda _: rng.randrange(256))
    return data


def _replaced(data: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return data[:at] + bytes([change(data[at])]) + data[at + 1 :] if data else data


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(max(len(data), 1))]


def _remove(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(max(len(data), 1))
    return data[:start] + data[start + rng.randrange(1, 40) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]


def _double(data: bytes, rng: random.Random) -> bytes:
    return data + data[: rng.randrange(1, len(data) + 1)]


def _rows(data: bytes) -> list[Any]:
    """Returns the JSON value of a file, or those of its lines; empty where it is no JSON."""
    for texts in ([data], data.splitlines()):
        try:
            values = [json.loads(text) for text in texts]
        except ValueError:
            continue
        if values and all(isinstance(value, dict | list) for value in values):
            return values
    return []


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each container with each key or index in it."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _changed(
    data: bytes, rng: random.Random, change: Callable[[Any, Any], None], kind: type | tuple = (dict, list)
) -> bytes:
    rows = copy.deepcopy(_rows(data))
    places = [place for row in rows for place in _places(row) if isinstance(place[0], kind)]
    if places:
        change(*rng.choice(places))
    return "\n".join(json.dumps(row) for row in rows).encode()


def _value(data: bytes, rng: random.Random) -> bytes:
    def change(container: Any, key: Any) -> None:
        old = container[key]
        near = [old + 1, old - 1, -old, old * 10] if type(old) in (int, float) else []
        container[key] = rng.choice([*STRANGE, *near * 3])

    return _changed(data, rng, change)


def _without_key(data: bytes, rng: random.Random) -> bytes:
    return _changed(data, rng, lambda container, key: container.pop(key), dict)


def _other_key(data: bytes, rng: random.Random) -> bytes:
    return _changed(data, rng, lambda container, key: container.update({f"{key}x": container.pop(key)}), dict)


def _more_keys(data: bytes, rng: random.Random) -> bytes:
    return _changed(data, rng, lambda container, key: container.update({"other": rng.choice(STRANGE)}), dict)


def _swap(data: bytes, rng: random.Random) -> bytes:
    def change(container: Any, key: Any) -> None:
        other = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
        container[key], container[other] = container[other], container[key]

    return _changed(data, rng, change)


def _deep(data: bytes, rng: random.Random) -> bytes:
    def change(container: Any, key: Any) -> None:
        container[key] = "DEEP"

    depth = rng.choice([70, 900, 100_000])
    return _changed(data, rng, change).replace(b'"DEEP"', b"[" * depth + b"]" * depth, 1)
