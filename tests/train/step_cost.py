"""`python -m tests.train.step_cost [--write]`: exact costs of a training step of three small models on a CPU.

Prints them as JSON, with the page faults per step of one of them; `--write` keeps the costs, for this version of
jaxlib, in `step_cost.json`. The logits are large for these models: another pass over them adds more than 5 % of bytes.
"""

import dataclasses
import importlib.metadata
import json
import os
import resource
import sys
from pathlib import Path

# Costs depend neither on the machine's instructions and cores nor on the quality of its code, which takes longest.
os.environ |= {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_max_isa=AVX2"

import jax

from jaxzoo.models import presets
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.session import Session
from jaxzoo.utils.host_memory import keep_freed_memory

KEPT = Path(__file__).with_suffix(".json")
MODELS = {
    "attention": presets.mqar_attention,
    "base_conv": presets.mqar_base_conv,
    "based": presets.mqar_based,
}
BLOCKS, STEPS = 4, 10


def make_session(name: str) -> Session:
    """A session of one of the models, smaller, with 16 answers among 64 tokens."""
    examples = (Examples(task=mqar.release(64, 16), n_examples=1000),)
    return Session(
        RunConfig(
            model=dataclasses.replace(MODELS[name](length=64, variant="release"), d_model=32),
            data=RecallDataConfig(train=examples, valid=examples),
            train=TrainConfig(batch_size=32),
        )
    )


def step_cost(session: Session) -> dict[str, int]:
    """Bytes that the instructions of a step read and write, its fusions, and the bytes of its temporaries."""
    with jax.set_mesh(session.mesh):
        compiled = session.compile()
    return {
        "bytes": int(compiled.cost_analysis()["bytes accessed"]),
        "fusions": compiled.as_text().count(" fusion("),
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
    }


def faults_per_step(session: Session) -> float:
    """Page faults of this process per step: the fewest of some blocks, in whose first the heap finds its size."""
    faults = []
    with jax.set_mesh(session.mesh):
        state, stream = session.init_state(), session.stream()
        for _ in range(BLOCKS):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(STEPS):
                state, metrics = session.update(state, next(stream))
                jax.block_until_ready(metrics)
            faults.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS)
    return min(faults)


def main() -> None:
    """Measures and prints."""
    if "--let-go" not in sys.argv:
        keep_freed_memory()
    sessions = {name: make_session(name) for name in MODELS}
    costs = {name: step_cost(session) for name, session in sessions.items()}
    faults = faults_per_step(sessions["base_conv"])
    version = importlib.metadata.version("jaxlib")
    print(json.dumps({"jaxlib": version, "costs": costs, "faults": faults}))
    if "--write" in sys.argv:
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        KEPT.write_text(json.dumps(kept | {version: costs}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
