"""Certificates follow the programs that kernels lower to, and kernels run where they were verified."""

import ast
import os
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from pallas_kernels import certificates, kernel_sources
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.registry import OPS
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.verify import compare

SAMPLE = 3
SMALLEST = "wkv4 mosaic_gpu forward t16_b1_d512_bfloat16"


@pytest.fixture
def shipped(monkeypatch):
    """The certificates of the package decide."""
    monkeypatch.delenv(certificates.SETTING)
    if not certificates.reports():
        pytest.skip(
            f"no certificate is of JAX {jax.__version__}: python -m pallas_kernels.verify makes one on a device"
        )


def lowered_for(cores, capability="9.0"):
    arrays = jax.eval_shape(Problem(b=1, t=128, h=2, k=16, v=64).inputs)
    with lowering_for("cuda", multiprocessors=cores, capability=capability):
        return jax.jit(lambda *x: taylor_attention(*x)).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


def test_all_ops_are_certified(shipped):
    """Kills a change of a kernel's program that no device has run, and certificates that were not renewed after a
    change of code that leaves the programs as they were."""
    changed = {op for op in OPS if ("9.0", op) not in certificates.certified()}
    if changed:
        names = [name for name in compare.verified() if name.split()[0] in changed]
        lines = "\n".join(compare.differences(names).values())
        pytest.fail(lines or "run python -m pallas_kernels.verify --compare, with JAX 0.11.2 too")


@pytest.mark.parametrize("cores", [132, 114])
def test_kernels_by_default(cores, shipped):
    """Kills kernels that an H100, an H200 (132 multiprocessors) or an H100 PCIe does not get, and those that a GPU gets
    which cannot run them."""
    assert "mosaic_gpu" in lowered_for(cores)
    assert "mosaic_gpu" not in lowered_for(cores, "8.0")
    assert "mosaic_gpu" not in lowered_for(cores, "10.0")


@pytest.mark.full
def test_verified_cases_lower_to_their_programs(shipped):
    """Kills a change of a kernel's program that no device has run."""
    names = sorted(compare.verified())
    assert len(names) >= 148
    chosen = [str(x) for x in np.random.default_rng(0).choice(names, SAMPLE, replace=False)]
    assert not compare.differences(chosen, processes=1)


@pytest.mark.slow
def test_all_verified_cases_lower_to_their_programs(shipped):
    """Kills what a sample does not show; runs under each version of JAX that has certificates."""
    assert not compare.differences(list(compare.verified()))


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, every file of it with other comments, docstrings and line numbers."""
    package = tmp_path / "pallas_kernels"
    shutil.copytree(kernel_sources.ROOT, package)
    for file in package.rglob("*.py"):
        text = file.read_text()
        tree = ast.parse(text)
        if ast.get_docstring(tree) is not None:
            lines = text.splitlines(keepends=True)[tree.body[0].end_lineno :]
            text = '"""Other words."""\n\n# a comment\n' + "".join(lines)
        file.write_text(text + "\n# the end\n")
    return package


def programs_in(package):
    """Programs of the smallest case, lowered by a process that imports a copy of the package."""
    code = f"from pallas_kernels.verify import compare; print(*compare.lowered_programs({SMALLEST!r}))"
    environment = os.environ | {"PYTHONPATH": str(package.parent), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=package.parent
    )
    return done.stdout.split()


@pytest.mark.full
def test_words_do_not_matter_and_numbers_do(shipped, copied, monkeypatch):
    """Kills certificates that fall with a docstring, a comment or a line number, and those that survive a constant."""
    before = {op: kernel_sources.kernel_hash(op) for op in OPS}
    monkeypatch.setattr(kernel_sources, "ROOT", copied)
    copies = {op: kernel_sources.kernel_hash.__wrapped__(op) for op in OPS}
    assert copies == before
    assert programs_in(copied) == compare.verified()[SMALLEST]
    file = copied / "wkv4/mosaic_gpu.py"
    changed = re.sub(r"^STAGES = 3$", "STAGES = 2", file.read_text(), flags=re.MULTILINE)
    assert changed != file.read_text()
    file.write_text(changed)
    after = {op: kernel_sources.kernel_hash.__wrapped__(op) for op in OPS}
    assert {op for op in OPS if after[op] != before[op]} == {"wkv4"}
    assert programs_in(copied) != compare.verified()[SMALLEST]
