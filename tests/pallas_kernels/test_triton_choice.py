"""Triton kernels are the automatic choice where they were verified and no Hopper kernel is."""

import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import certificates, kernel_sources, triton_packages
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.api import OP
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.ut_transform.problem import ValuesProblem
from pallas_kernels.ut_transform.values_api import delta_values

PROBLEM = Problem(b=1, t=64, h=1, k=16, v=64)
KERNELS = {"triton": "triton_kernel_call", "mosaic": "mosaic_gpu"}
"""Names of the custom calls that kernels become, by language."""


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Function (language, capability, op) that certifies an op; before, nothing is certified."""
    monkeypatch.delenv(certificates.SETTING)
    monkeypatch.setattr(certificates, "FOLDER", tmp_path)

    def write(language, capability, op=OP.name):
        case = {"case": f"{op} {language} forward", "status": "ok"}
        hashes = {op: kernel_sources.kernel_hash(op, language)}
        report = {"device": "a GPU", "capability": capability, "cores": 108, "jax": jax.__version__, "cases": [case]}
        text = json.dumps(report | {"language": language, "kernels": hashes})
        (tmp_path / f"{language}{capability}{op}.json").write_text(text)

    yield write
    certificates._read.cache_clear()


def names(capability):
    with lowering_for("cuda", capability=capability, multiprocessors=108):
        return OP.choose(PROBLEM, None)


def test_triton_is_chosen_where_it_was_verified(plant, monkeypatch):
    """Kills Triton kernels that run where nobody has verified them, that stay away where somebody has, or that run in
    place of Hopper's, and programs for a CPU that are lowered as if they could run on a GPU."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    assert all("triton" not in names(x) for x in ("8.0", "9.0"))
    plant("triton", "8.0")
    assert "triton" in names("8.0")
    assert names("8.0").index("mosaic_gpu") < names("8.0").index("triton")
    assert all("triton" not in names(x) for x in ("8.6", "9.0"))
    assert "triton" not in OP.choose(PROBLEM, None)
    monkeypatch.setattr(triton_packages, "missing", lambda: "not installed")
    assert "triton" not in names("8.0")


def taylor_gradients(*x):
    return jax.grad(lambda *x: taylor_attention(*x).sum(dtype=jnp.float32), (0, 1, 2))(*x)


def kernels(capability, call=taylor_gradients, on=PROBLEM):
    """Kernels by language in a program for an absent GPU with 108 multiprocessors."""
    with lowering_for("cuda", capability=capability, multiprocessors=108):
        arrays = jax.eval_shape(on.inputs)
        again = jax.jit(lambda *x: call(*x))  # a new function: JAX would keep the program of the first certificates
        text = again.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    return {language: text.count(f"@{name}") for language, name in KERNELS.items()}


@pytest.mark.full
@pytest.mark.skipif(triton_packages.missing() is not None, reason="needs the extra triton")
def test_programs_for_absent_gpus(plant):
    """Kills a choice that is not what is lowered: for an A100 and an H100, with and without certificates."""
    assert kernels("8.0") == {"triton": 0, "mosaic": 0}
    plant("triton", "8.0")
    found = kernels("8.0")
    assert found["triton"] >= 1
    assert found["mosaic"] == 0
    plant("triton", "9.0")
    plant("mosaic", "9.0")
    found = kernels("9.0")
    assert found["triton"] == 0
    assert found["mosaic"] >= 2


def test_kernels_of_two_packages_are_verified_in_one_language(plant):
    """Kills Hopper's kernels of values where only Triton's kernels of their recurrence were verified."""
    values = ValuesProblem(b=1, t=64, h=1, k=64, v=64)
    plant("mosaic", "9.0", "ut_transform")
    plant("triton", "9.0", "delta_chunks")
    assert kernels("9.0", delta_values, values)["mosaic"] == 0
    plant("mosaic", "9.0", "delta_chunks")
    assert kernels("9.0", delta_values, values)["mosaic"] == 2


PROGRAMS = """
import sys
import jax
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.verify.kernel_case import case_programs
arrays = jax.eval_shape(Problem(b=1, t=64, h=1, k=16, v=64).inputs)
for capability in sys.argv[1:]:
    with lowering_for("cuda", capability=capability):
        traced = jax.jit(lambda *x: taylor_attention(*x, implementation="triton")).trace(*arrays)
        print(*case_programs(traced.lower(lowering_platforms=("cuda",))))
"""


@pytest.mark.full
@pytest.mark.skipif(triton_packages.missing() is not None, reason="needs the extra triton")
def test_words_do_not_matter_and_numbers_do(tmp_path):
    """Kills certificates of Triton kernels that fall with a comment, a line number or the next process, and those that
    survive a constant or another GPU."""
    package = tmp_path / "pallas_kernels"
    shutil.copytree(kernel_sources.ROOT, package)
    file = package / OP.name / "triton_kernels.py"
    text = file.read_text()

    def programs(folder, *capabilities):
        environment = os.environ | {"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", PROGRAMS, *capabilities]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
        return [line.split() for line in done.stdout.splitlines()]

    first, other = programs(kernel_sources.ROOT.parent, "8.0", "8.6")
    assert first
    assert first != other
    file.write_text("# a comment\n\n" + text)
    assert programs(tmp_path, "8.0") == [first]
    file.write_text(text.replace(" tl.load(", " 2.0 * tl.load("))
    assert file.read_text() != text
    assert programs(tmp_path, "8.0") != [first]
