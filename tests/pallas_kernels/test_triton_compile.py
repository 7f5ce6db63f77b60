"""Machine code of the Triton kernels: the kept report is that of today's kernels, which neither spill nor overflow."""

import json
import os
import subprocess
import sys

import pytest

from pallas_kernels.compile_check.triton import CAPABILITIES, REPORT
from pallas_kernels.registry import FUSED, OPS, load
from pallas_kernels.triton_call import missing
from tests.pallas_kernels.aot import needs

SERVED = [*(op for op in OPS if "triton" in load(op, "api").BACKENDS), *FUSED]
KEPT = json.loads(REPORT.read_text())


def compiled(op: str, *capabilities: str) -> dict:
    needs("h100")
    if (absent := missing()) and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra triton: {absent}")
    command = [sys.executable, "-m", "pallas_kernels.compile_check.triton", "--ops", op, "--capabilities"]
    done = subprocess.run([*command, *capabilities], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])[op]


@pytest.mark.parametrize("op", SERVED)
def test_kept_kernels_fit(op):
    """Kills a kept report with spills, with more shared memory than a block has, or without one of the GPUs."""
    assert KEPT[op].keys() == CAPABILITIES.keys()
    for capability, calls in KEPT[op].items():
        for name, kernels in calls.items():
            assert kernels, (capability, name)
            for kernel, numbers in kernels.items():
                assert numbers["spills"] == 0, (capability, name, kernel)
                assert numbers["shared_memory"] <= CAPABILITIES[capability] * 1024, (capability, name, kernel)


@pytest.mark.full
def test_kernels_of_ampere_and_hopper_are_as_kept():
    """Kills a change of a kernel without a new report; of the ops with matmuls the one that compiles soonest."""
    for op in ("delta_chunks", *FUSED):
        assert compiled(op, "8.0", "9.0") == {x: KEPT[op][x] for x in ("8.0", "9.0")}, op


@pytest.mark.slow
@pytest.mark.parametrize("op", SERVED)
def test_all_kernels_are_as_kept(op):
    """Kills a change of a kernel without a new report, and PTX that Triton or ptxas refuses."""
    assert compiled(op, *CAPABILITIES) == KEPT[op]
