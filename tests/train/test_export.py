"""Models as safetensors files. Kills: a bit or a field that is lost."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from jaxzoo.cli.evaluate import main as evaluate
from jaxzoo.cli.export import main as export
from jaxzoo.cli.generate import main as generate
from jaxzoo.loading import load
from jaxzoo.models.blueprint import Variables, names_of, split_variables
from jaxzoo.train.checkpoint import CheckpointManifest
from jaxzoo.train.export import read_header, read_portable, write_portable
from jaxzoo.utils.checksums import digests
from tests.train.test_origin import SHORT, saved_variables

NANS = np.array([[0x7FC00123, 0xFFC12345, 0x7F800000], [0x80000000, 0x00000001, 0x3F800000]], np.uint32)
"""NaNs with payloads, infinity, negative zero, the smallest subnormal number, one; as bits of float32."""


def bits(x) -> bytes:
    return np.asarray(x).tobytes()


@pytest.fixture
def odd(tmp_path):
    """A file of odd numbers in two dtypes, and what it was made of."""
    bf16 = jax.lax.bitcast_convert_type(jnp.asarray(NANS >> 16, jnp.uint16), jnp.bfloat16)
    params = {"stacks": {0: {"a": jnp.asarray(NANS.view(np.float32)), "b": bf16}}}
    variables = Variables(params, {"stacks": {0: {"signs": jnp.arange(4, dtype=jnp.int32)}}})
    seal = CheckpointManifest(
        7, {"fingerprint": "tok:1:corpus"}, {"model": {"d_model": 3}}, 0, digests(variables._asdict())
    )
    write_portable(tmp_path / "m.safetensors", variables, seal)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), variables)
    return SimpleNamespace(file=tmp_path / "m.safetensors", variables=variables, abstract=abstract, seal=seal)


def test_every_bit_and_all_that_is_said_of_it(odd):
    """Kills: a cast on the way, a NaN made quiet, names or metadata that another program cannot make sense of, half a
    file left in the directory, equal exports whose bytes differ."""
    arrays = load_file(odd.file)
    assert arrays.keys() == {"stacks.0.a", "stacks.0.b", "stacks.0.signs"}
    assert (arrays["stacks.0.a"].dtype, bits(arrays["stacks.0.a"])) == (np.float32, NANS.tobytes())
    assert arrays["stacks.0.b"].dtype == jnp.bfloat16
    assert bits(arrays["stacks.0.b"]) == (NANS >> 16).astype(np.uint16).tobytes()
    with safetensors.safe_open(odd.file, framework="np") as content:
        metadata = content.metadata()
    assert json.loads(metadata["config"]) == {"model": {"d_model": 3}}
    assert (metadata["step"], metadata["tokenizer"], json.loads(metadata["buffers"])) == (
        "7",
        "tok:1",
        ["stacks.0.signs"],
    )
    assert len(metadata["digest"]) == 64
    assert metadata["jaxzoo_version"]
    seal, digest = read_header(odd.file)
    read = read_portable(odd.file, digest, odd.abstract)
    assert jax.tree.map(bits, read) == jax.tree.map(bits, odd.variables)
    assert {d for x in jax.tree.leaves(read) for d in x.devices()} == {jax.devices()[3]}
    assert (seal.step, seal.cursor) == (7, {"fingerprint": "tok:1:exported"})
    assert "buffers/stacks/0/signs" in seal.digests
    assert [p.name for p in odd.file.parent.iterdir()] == ["m.safetensors"]
    for _ in range(4):
        write_portable(odd.file.parent / "again.safetensors", odd.variables, odd.seal)
        assert (odd.file.parent / "again.safetensors").read_bytes() == odd.file.read_bytes()
    (odd.file.parent / "plain").touch()
    assert odd.file.stat().st_mode == (odd.file.parent / "plain").stat().st_mode


def test_damage_is_noticed(odd):
    """Kills: a flipped bit in an array, another buffer, an array of another dtype, another program's file, half a
    file."""
    with safetensors.safe_open(odd.file, framework="np") as content:
        metadata = content.metadata()
    data, arrays = odd.file.read_bytes(), load_file(odd.file)
    save_file({**arrays, "stacks.0.signs": arrays["stacks.0.signs"] + 1}, odd.file, metadata=metadata)
    with pytest.raises(OSError, match="holds other numbers than were written"):
        read_portable(odd.file, read_header(odd.file)[1], odd.abstract)
    odd.file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(OSError, match="holds other numbers than were written"):
        read_portable(odd.file, read_header(odd.file)[1], odd.abstract)
    arrays = load_file(odd.file)
    save_file({**arrays, "stacks.0.b": arrays["stacks.0.a"]}, odd.file, metadata=metadata)
    with pytest.raises(ValueError, match=r"variable stacks\.0\.b is float32, and bfloat16 in this model"):
        read_portable(odd.file, read_header(odd.file)[1], odd.abstract)
    half = arrays["stacks.0.a"].astype(jnp.bfloat16)
    save_file({**arrays, "stacks.0.a": half}, odd.file, metadata=metadata)
    with pytest.raises(OSError, match="holds other numbers than were written"):
        read_portable(odd.file, read_header(odd.file)[1], odd.abstract)
    save_file(arrays, odd.file)
    with pytest.raises(ValueError, match="is no model of jaxzoo: it lacks the metadata"):
        read_portable(odd.file, read_header(odd.file)[1], odd.abstract)
    odd.file.write_bytes(data[:100])
    with pytest.raises(OSError, match="is damaged, or no safetensors file"):
        read_portable(odd.file, read_header(odd.file)[1], odd.abstract)


@pytest.mark.slow
def test_an_exported_folder_is_read_like_a_run(text_file, run, tmp_path, capfd):
    """Kills: a norm that is rounded, a matrix that is not or comes back in bfloat16; a folder that forgets metrics or
    config, answers for a step that it does not hold, is resumed, or hides the numbers of a run that replaces it."""
    assert run(text_file, "r", *SHORT) == 0
    folder = tmp_path / "small"
    given = ["--run", str(tmp_path / "r"), "--out", str(folder)]
    assert export([*given, "--dtype", "bfloat16"]) == 0
    before, loaded = saved_variables(tmp_path / "r", 3), load(folder)
    stored = load_file(folder / "model.safetensors")
    after = {f"params/{name}": np.asarray(x) for name, x in names_of(split_variables(loaded.model).params).items()}
    assert after.keys() == {name for name in before if name.startswith("params/")}
    for name, x in after.items():
        norm = name.endswith(("scale", "bias"))
        assert stored[name.removeprefix("params/").replace("/", ".")].dtype == (np.float32 if norm else jnp.bfloat16)
        want = before[name] if norm else before[name].astype(jnp.bfloat16).astype(np.float32)
        assert (x.dtype, bits(x)) == (np.float32, bits(want)), name
    assert (loaded.step, loaded.metrics) == (3, load(tmp_path / "r").metrics)
    assert evaluate(["--run", str(folder), "--checkpoint", "3"]) == 0
    assert generate(["--run", str(folder), "--prompt", "never", "--max-tokens", "9"]) == 0
    capfd.readouterr()
    assert generate(["--run", str(folder), "--prompt", "never", "--checkpoint", "2"]) == 2
    assert "checkpoint 2 must be 3, the only one in" in capfd.readouterr().err
    assert run(text_file, "small", *SHORT, "--resume") == 2
    assert "begin another run with its --init-from" in capfd.readouterr().err
    assert run(text_file, "small", *SHORT, "--overwrite") == 0
    assert saved_variables(folder, 3).keys() == before.keys()
    assert not (folder / "model.safetensors").exists()
