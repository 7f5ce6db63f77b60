"""Exact costs of a training step on a CPU. Kills: a further pass over logits or activations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxzoo.utils.host_memory import ENVIRONMENT

KEPT = Path(__file__).with_name("step_cost.json")


def measure(*options: str) -> dict:
    """The report of a process of its own, whose allocator is that of a user's process."""
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    environment |= {"PYTHONPATH": ":".join(sys.path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    command = [sys.executable, "-m", "tests.train.step_cost", *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.full
def test_a_step_costs_what_it_did():
    """Kills: a further pass over the logits, many over the activations, operations that are not fused any more, an
    array that is kept too long, memory that every step maps again."""
    found = measure()
    kept = json.loads(KEPT.read_text()).get(found["jaxlib"])
    write = "python -m tests.train.step_cost --write"
    assert kept, f"no costs are kept for jaxlib {found['jaxlib']}; on a commit whose speed is known, {write}"
    changes = [
        f"{name}: {number:,} {kind}, {number / kept[name][kind] - 1:+.0%}"
        for name, cost in found["costs"].items()
        for kind, number in cost.items()
        if abs(number / kept[name][kind] - 1) > 0.05
    ]
    assert not changes, f"{'; '.join(changes)}; if this is wanted, {write}"
    assert found["faults"] < 50
