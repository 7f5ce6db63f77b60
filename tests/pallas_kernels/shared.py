"""Helpers shared by the tests of every kernel package: errors, lowered programs, collectives, meshes."""

import re

import jax
import numpy as np
import pytest

AUTO = jax.sharding.AxisType.Auto
LAYOUTS = {
    "batch_heads": ((4, 2), {"batch_axes": ("x",), "head_axes": ("y",)}),
    "batch_of_both": ((2, 4), {"batch_axes": ("x", "y")}),
    "sequence": ((1, 8), {"sequence_axis": "y"}),
    "everything": ((2, 2, 2), {"batch_axes": ("x",), "head_axes": ("y",), "sequence_axis": "z"}),
}
"""Shapes of meshes of eight devices, and what is sharded over their axes."""
COLLECTIVE = re.compile(r"(\S+) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")

needs_eight_devices = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices, as tests/conftest.py makes")
MARKERS = {"tpu": "tpu_custom_call", "cuda": "mosaic_gpu"}
"""Names of the custom calls that kernels become."""
PLATFORMS = ("tpu", "cuda")
"""Platforms that have kernels."""


def full(*values):
    """A case of a grid for CI, which kills no bug that the core cases leave alive."""
    return pytest.param(*values, marks=pytest.mark.full)


def slow(*values):
    """A case for `-m slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def relative_l2(x, expected) -> float:
    """Relative L2 error, for a root mean square of at least 1e-3: a gradient that cancels has no digits."""
    x, expected = np.asarray(x, np.float64), np.asarray(expected, np.float64)
    assert x.shape == expected.shape, (x.shape, expected.shape)
    norm = max(np.linalg.norm(expected), 1e-3 * np.sqrt(expected.size), 1e-30)  # the last: of nothing
    return float(np.linalg.norm(x - expected) / norm)


def assert_close(actual, expected, tolerance):
    """Every array within `tolerance` of its expectation in relative L2."""
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    errors = [relative_l2(x, y) for x, y in zip(actual, expected, strict=True)]
    assert all(error <= tolerance for error in errors), errors  # NaN is not; `max` may pass over it


def lowered(function, arrays, platform: str) -> str:
    """The program for `platform`, from whatever host."""
    return jax.jit(function).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()


def all_shapes(jaxpr):
    """Shapes of every intermediate array, those of inner programs included."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.shape for v in eqn.outvars)
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from all_shapes(inner)


def make_mesh(shape):
    """Automatic axes x, y, z, as many as `shape` has."""
    return jax.make_mesh(shape, ("x", "y", "z")[: len(shape)], axis_types=(AUTO,) * len(shape))


def collectives(function, arrays) -> list[tuple[str, int]]:
    """[(kind, elements)] in the compiled program."""
    found = []
    for shape, kind in COLLECTIVE.findall(jax.jit(function).lower(*arrays).compile().as_text()):
        sizes = re.findall(r"\[([\d,]*)\]", shape)
        found += [(kind, int(np.prod([int(n) for n in size.split(",") if n]))) for size in sizes]
    return found
