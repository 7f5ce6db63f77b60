"""Checksums of objects, lines and arrays. Kills: a single bit that does not count."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxzoo.utils.checksums import add_checksum, checked_line, digests, read_checked, read_line
from jaxzoo.utils.whole_files import write_json

M = 2**32


def test_an_object_with_other_content_is_refused(tmp_path):
    """Kills: a checksum of the text's layout, one that is not compared, and one that may be absent."""
    file, place = tmp_path / "a.json", {"file": 1, "line": 2}
    write_json(file, add_checksum(place))
    assert read_checked(file, dict[str, int]) == place
    for old, new in (('"file": 1', '"file": 2'), ('"checksum"', '"checksums"')):
        file.write_text(json.dumps(add_checksum(place)).replace(old, new))
        with pytest.raises(ValueError, match=r"a.json: is damaged: its checksum is missing or that of another text; x"):
            read_checked(file, dict[str, int], remedy="x")
    # the order of keys is that of strings, as a file has them
    write_json(file, add_checksum({"by step": {10: 0.5, 9: 1e-30}}))
    assert read_checked(file, dict) == {"by step": {"10": 0.5, "9": 1e-30}}


def test_every_letter_of_a_line_counts():
    """Kills: a digit of a row that changes unnoticed; a row of a version without checksums that is refused."""
    row = {"step": 10, "train/loss": 0.25, "grad": float("inf")}
    line = checked_line(row).encode()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert read_line(line) == row
    assert read_line(json.dumps(row).encode()) == row
    for i, byte in enumerate(line.rstrip()):
        if byte in b" ":
            continue
        changed = line[:i] + bytes([byte ^ 1]) + line[i + 1 :]
        if b'"crc"' in changed:
            with pytest.raises(ValueError):
                read_line(changed)


def sum_of(array) -> int:
    (digest,) = digests({"x": jnp.asarray(array)}).values()
    return digest.sum


def by_hand(words: list[int]) -> int:
    """The formula of the module's docstring, in Python's own integers."""
    total = 0
    for i, b in enumerate(words):
        x = (b ^ i * 0x9E3779B1 % M) * 0xC2B2AE35 % M
        x = (x ^ x >> 15) * 0x85EBCA6B % M
        total += x ^ x >> 15
    return total % M


@pytest.mark.parametrize(
    "shape", [(2, 3, 4), *(pytest.param(s, marks=pytest.mark.full) for s in ((), (7,), (3, 5), (0, 3)))]
)
def test_the_formula(shape):
    """Kills: another index order, a mix that loses bits, a sum that is not modulo 2^32."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert sum_of(x) == by_hand(x.reshape(-1).view(np.uint32).tolist())


DTYPES = ("bool", "int8", "uint8", "bfloat16", "float16", "int32", "uint32", "float32", "int64", "float64", "complex64")


@pytest.mark.parametrize(
    "dtype", [n if n in ("bfloat16", "float32") else pytest.param(n, marks=pytest.mark.full) for n in DTYPES]
)
def test_every_single_bit_counts(dtype):
    """Kills: bits that a conversion loses (NaN payloads, the sign of zero, the upper half of 64 bits)."""
    with jax.enable_x64(jnp.dtype(dtype).itemsize == 8):
        size = jnp.dtype(dtype).itemsize
        data = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 6 * size).astype(np.uint8)
        if jnp.issubdtype(dtype, jnp.floating):
            data[: 2 * size] = 255  # NaN
        seen = [sum_of(data.view(jnp.dtype(dtype)))]
        for byte in range(6 * size):
            for bit in range(1 if dtype == "bool" else 8):
                flipped = data.copy()
                flipped[byte] ^= 1 << bit
                seen.append(sum_of(flipped.view(jnp.dtype(dtype))))
    assert seen[0] not in seen[1:]


def test_changes_of_several_words():
    """Kills: sums that know no place, and linear ones, in which two flipped signs cancel."""
    x = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    changed = [x[::-1], x[:, ::-1], np.roll(x, 1), x.reshape(50, 4).T]
    for i in range(199):
        signs, swap = x.copy().reshape(-1), x.copy().reshape(-1)
        signs[[i, i + 1]] *= -1
        swap[[i, i + 1]] = swap[[i + 1, i]]
        changed += [signs.reshape(x.shape), swap.reshape(x.shape)]
    assert sum_of(x) not in [sum_of(np.ascontiguousarray(y)) for y in changed]


@pytest.mark.parametrize(
    "spec",
    [
        ("y", "x"),
        *(
            pytest.param(s, marks=pytest.mark.full)
            for s in (("x",), (None, "y"), (("x", "y"),), (None, ("x", "y")), ())
        ),
    ],
)
def test_the_same_on_every_mesh(spec):
    """Kills: shards counted twice or from a wrong beginning, sums that depend on their order."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 16)).astype(np.float32)
    laid_out = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    with jax.set_mesh(mesh):
        assert sum_of(laid_out) == by_hand(x.reshape(-1).view(np.uint32).tolist())
