"""Advice on how to change a plan, one line each."""

from collections.abc import Iterator

from jaxzoo.plan.plan import Plan, find
from jaxzoo.plan.units import size

CHUNK = 256
"""Tokens of a row whose logits exist at once, where a chunked loss is proposed."""

LARGE_LOGITS = 0.05
"""Share of the capacity from which on one array of logits is too much: the loss holds several at once."""

REMAT_SAVES = 8
"""How many times as large a peak may be without remat: 7 times with Based 360m on eight H100s."""

PREALLOCATED = 0.75
"""Share of a GPU's memory that JAX takes for itself, unless it is told otherwise."""


def advice(plan: Plan) -> list[str]:
    """Flags that make the plan fit, or a plan that fits cheaper; the best first."""
    return list(_to_fit(plan) if not plan.fits else _to_speed_up(plan))


def _to_fit(plan: Plan) -> Iterator[str]:
    over = plan.memory.peak - plan.memory.capacity
    rows = plan.batch_size // (plan.mesh["data"] * plan.mesh["fsdp"] * plan.accumulate)
    chunked = plan.logits * CHUNK // plan.length
    if not plan.loss_chunk and plan.logits > LARGE_LOGITS * plan.memory.capacity and plan.length > CHUNK:
        yield f"--train.loss-chunk {CHUNK}: arrays of logits of {size(chunked)} in place of {size(plan.logits)}"
    if plan.remat == "nothing":
        yield "--model.remat period (or mixer_inputs): activations are computed again, for a third more FLOPs at most"
    elif plan.remat != "everything":
        yield "--model.remat everything: fewer activations are kept, for about two thirds more FLOPs"
    if rows > 1:
        parts = plan.accumulate * next(n for n in range(2, rows + 1) if rows % n == 0)
        yield f"--train.accumulate {parts}: the same batch in {parts} parts, activations of one of them at a time"
    state = plan.memory.params + plan.memory.optimizer
    if plan.mesh["data"] > 1 and state > over / 4:
        fsdp = plan.mesh["fsdp"] * plan.mesh["data"]
        shared = size(state / plan.mesh["data"])
        yield f"--mesh.data 1 --mesh.fsdp {fsdp}: {shared} of state on a device in place of {size(state)}"
    yield "more devices, or a smaller --train.batch-size"


def _to_speed_up(plan: Plan) -> Iterator[str]:
    memory, times = plan.memory, plan.times
    if find(plan.device).name in ("h100", "h200") and memory.peak > PREALLOCATED * memory.capacity:
        yield f"XLA_PYTHON_CLIENT_MEM_FRACTION=0.95: unless told, JAX takes {PREALLOCATED:.0%} of a GPU, too little"
    if plan.remat != "nothing" and memory.peak * REMAT_SAVES < memory.capacity:
        saved = plan.work.recomputed / sum(plan.work)
        free = size(memory.capacity - memory.peak)
        yield f"plan it with --model.remat nothing: {free} are free, and {saved:.0%} of the FLOPs are computed again"
    if times.bottleneck == "network" and plan.mesh["fsdp"] > 1:
        less = next(n for n in range(2, plan.mesh["fsdp"] + 1) if plan.mesh["fsdp"] % n == 0)
        state = (memory.params + memory.optimizer) * less
        if memory.peak + state < memory.capacity:
            data, fsdp = plan.mesh["data"] * less, plan.mesh["fsdp"] // less
            room = f"a device has room for {size(state)} of state"
            yield f"--mesh.data {data} --mesh.fsdp {fsdp}: the network bounds the step, and {room}"
    rows = plan.batch_size // (plan.mesh["data"] * plan.mesh["fsdp"])
    if plan.accumulate > 1 and times.bottleneck == "network":
        yield f"a smaller --train.accumulate than {plan.accumulate}: parameters are gathered for each part"
    if rows <= 1 and times.bottleneck == "network":
        yield "fewer devices, or a larger --train.batch-size: one row a device is little work between two exchanges"
