"""First call of every op, and its choice of an implementation."""

import subprocess
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import certificates
from pallas_kernels.dispatch import Backend, choose, lowering_for, multiprocessors, run
from pallas_kernels.taylor_attention.mosaic_gpu_layout import choose_pieces
from tests.pallas_kernels.shared import lowered, slow

PROGRAM = """
import jax, jax.numpy as jnp
from pallas_kernels.{package} import {op}

traces = []

@jax.jit
def run(q):
    traces.append(1)
    return {op}(q, q, q{options})

for _ in range(2):
    run(jnp.ones((1, 128, 1, 16)))
assert len(traces) == 1, traces
"""


@pytest.mark.parametrize(
    ("package", "op", "options"),
    [("taylor_attention", "taylor_attention", ""), slow("sliding_window", "sliding_window_attention", ", window=9")],
)
def test_the_first_call_of_a_process_is_the_only_trace(package, op, options):
    """Kills an import within the first trace that changes jit's keys, so that the second call compiles again."""
    program = PROGRAM.format(package=package, op=op, options=options)
    subprocess.run([sys.executable, "-c", program], check=True)


class Table:
    """Three implementations of `scale * x + bias`, one wrong by 1 to be told apart, and what was traced."""

    def __init__(self, fast_objection=lambda problem, device: None):
        self.traced = []
        self.backends = {
            "xla": Backend(None, lambda problem: None, self.function("xla", 0), None),
            "fast": Backend("cpu", lambda problem: None, self.function("fast", 1), None, fast_objection),
            "other": Backend("tpu", lambda problem: None, self.function("other", 2), None),
            "never": Backend("cpu", lambda problem: "is never good", self.function("never", 3), None),
        }

    def function(self, name, error):
        def forward(x, bias, *, scale):
            self.traced.append(name)
            y = scale * x if bias is None else scale * x + bias.only[:, None]
            return y + error, None if bias is None else Bias(bias.only), None

        return forward

    def run(self, x, bias=None, *, implementation=None):
        names = choose(self.backends, "a problem", implementation, kernels=("never", "fast", "other"))
        return run(self.backends, "forward", names, "a problem", x, bias, scale=3.0)


class Bias(NamedTuple):
    only: jax.Array


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_target_decides_and_nothing_else_is_traced():
    """Kills a choice by the host, and time that is spent on branches that do not run."""
    table = Table()
    y, *rest = table.run(X)
    assert rest == [None, None]
    np.testing.assert_array_equal(y, 3 * X + 1)
    assert set(table.traced) == {"fast", "xla"}  # xla, for the shapes of the outputs
    for platform, error in (("tpu", 2), ("cpu", 1), ("cuda", 0)):
        text = lowered(lambda x: table.run(x)[0], [X], platform)
        assert [found for found in (1, 2) if f"dense<{found}.0" in text] == ([error] if error else [])


def test_the_device_is_asked():
    """Kills a kernel on a device that has not what it needs."""
    seen = []
    table = Table(lambda problem, device: seen.append((problem, device)) or "is not for this device")
    np.testing.assert_array_equal(table.run(X)[0], 3 * X)
    assert set(seen) == {("a problem", jax.devices()[0])}
    assert "fast" not in table.traced
    with pytest.raises(NotImplementedError, match=r"^fast: is not for this device; use implementation='xla'"):
        table.run(X, implementation="fast")


def test_a_program_for_an_absent_device_has_none_to_ask():
    """Kills a question to the host's GPU about a program for another one."""
    seen = []
    table = Table()
    table.backends["other"] = table.backends["other"]._replace(target_objection=lambda p, device: seen.append(device))
    lowered(lambda x: table.run(x)[0], [X], "tpu")
    assert seen == [None]


def test_plans_are_for_the_gpu_of_the_process(monkeypatch):
    """Kills plans that no device has verified: those for an H100 PCIe (114) before kernels were verified on one."""
    assert multiprocessors() == 132
    device = types.SimpleNamespace(core_count=114, compute_capability="9.0")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert multiprocessors() == choose_pieces(1, 1000) == 132
    monkeypatch.setattr(certificates, "verified_multiprocessors", lambda target: {"9.0": {114, 132}}[target])
    assert multiprocessors() == choose_pieces(1, 1000) == 114
    with lowering_for("cuda"):
        assert multiprocessors() == 132
    with lowering_for("cuda", multiprocessors=78):
        assert multiprocessors() == choose_pieces(1, 1000) == 78


def test_a_name_never_falls_back():
    """Kills another implementation than the one that was asked for."""
    np.testing.assert_array_equal(Table().run(X, implementation="xla")[0], 3 * X)
    with pytest.raises(NotImplementedError, match=r"^never: is never good; use implementation='xla'$"):
        Table().run(X, implementation="never")
    with pytest.raises(NotImplementedError, match=r"^other: runs on tpu, and this is compiled for cpu; use"):
        Table().run(X, implementation="other")


def test_transformations():
    """Kills batch axes that are mixed up, a map over what is shared, and results that `jit` or `scan` change."""
    table, bias = Table(), Bias(jnp.array([10.0, 20.0]))

    def one(x, bias):
        return table.run(x, bias)[0]

    def expected(x, bias):
        return 3 * x + bias.only[:, None] + 1

    def twice(f):
        return jax.vmap(jax.vmap(f, in_axes=(0, None), out_axes=1), in_axes=(2, Bias(1)))

    many, biases = jnp.arange(120.0).reshape(4, 2, 5, 3), Bias(jnp.arange(10.0).reshape(2, 5))
    np.testing.assert_array_equal(jax.jit(one)(X, bias), expected(X, bias))
    np.testing.assert_array_equal(twice(one)(many, biases), twice(expected)(many, biases))
    many = many[:, :, 0]
    _, scanned = jax.lax.scan(lambda carry, x: (carry, one(x, bias)), None, many)
    np.testing.assert_array_equal(scanned, jnp.stack([one(x, bias) for x in many]))


def test_inside_shard_map():
    """Kills outputs of which nobody knows over which axes they vary."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    part = jax.shard_map(lambda x: Table().run(x)[0], mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(part)(X), 3 * X + 1)


def test_the_same_call_is_compiled_once():
    """Kills static arguments that compare unequal from call to call."""
    table = Table()
    table.run(X)
    first = len(table.traced)
    table.run(X + 1)
    assert len(table.traced) == first


def test_all_make_the_same_arrays():
    """Kills a program with an array of another type than it says."""
    table = Table()
    table.backends["fast"] = table.backends["fast"]._replace(forward=lambda x, bias, *, scale: (x[:1], None, None))
    with pytest.raises(TypeError, match=r"^fast makes .*\(1, 3\).*, where xla makes .*\(2, 3\)"):
        table.run(X)
