"""Text of plans: one in full, with advice, or several as a table."""

import math
from collections.abc import Iterator, Sequence

from jaxzoo.plan import cudnn
from jaxzoo.plan.plan import Plan, find

COLUMNS = (
    "run", "devices", "mesh", "to save memory", "peak / capacity", "step at best", "bound by", "tokens/s", "MFU",
    "hours", "device-hours",
)  # fmt: skip

CHUNK = 256
"""Chunk of the loss that the advice proposes, in tokens of a row."""

LARGE_LOGITS = 0.05
"""Largest acceptable size of one array of logits, as a share of the capacity: the loss holds several at once."""

REMAT_SAVES = 8
"""Assumed growth of the peak without remat; 7 was measured with Based 360m on eight H100s."""

PROJECTIONS_SAVE = 3
"""Assumed growth of the peak from remat period to projections; 2.6 was measured in the same case."""

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")

PREALLOCATED = 0.75
"""Default share of a GPU's memory that JAX allocates."""


def describe(plan: Plan) -> str:
    """Report of a plan, with advice on what to change."""
    lines = ["", *_head(plan), "", *_memory(plan), "", *_work(plan), "", verdict(plan)]
    found = advice(plan)
    if found:
        lines.append("to make it fit:" if not plan.fits else "to make it faster:")
    return "\n".join([*lines, *(f"  {line}" for line in found)])


def verdict(plan: Plan) -> str:
    """One line that says whether the plan fits."""
    peak = plan.memory.peak
    capacity = plan.memory.capacity
    if plan.fits:
        return f"fits: {size(peak)} of {size(capacity)}, {size(capacity - peak)} to spare"
    return f"DOES NOT FIT: {size(peak)} of {size(capacity)}, {size(peak - capacity)} too many"


def table(plans: Sequence[Plan]) -> str:
    """Plans side by side, as Markdown."""
    rows: list[tuple[str, ...]] = [COLUMNS, ("---",) * len(COLUMNS)]
    for plan in plans:
        name = f"{plan.name}, {plan.batch_size} x {plan.length}"
        device = f"{plan.n_devices} x {plan.device}"
        row = (name, device, mesh_words(plan), saving_words(plan))
        memory = f"{size(plan.memory.peak)} / {size(plan.memory.capacity)}"
        times = plan.times
        if not plan.fits:
            rows.append((*row, f"**{memory}**", "does not fit", *("",) * 5))
            continue
        speed = (duration(times.bound), times.bottleneck, f"{plan.tokens / times.bound:,.0f}", f"{plan.mfu:.0%}")
        rows.append((*row, memory, *speed, f"{plan.hours:,.3g}", f"{plan.hours * plan.n_devices:,.4g}"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def mesh_words(plan: Plan) -> str:
    """Axes with more than one device, as text."""
    return " ".join(f"{name}={size}" for name, size in plan.mesh.items() if size > 1) or "one device"


def saving_words(plan: Plan) -> str:
    """Settings of a plan that save memory, as text."""
    parts = [f"remat {plan.remat}"] if plan.remat != "nothing" else []
    parts += [f"loss chunk {plan.loss_chunk}"] if plan.loss_chunk else []
    parts += [f"{plan.accumulate} parts"] if plan.accumulate > 1 else []
    parts += ["layers not scanned"] if not plan.scan_layers else []
    return ", ".join(parts) or "nothing"


def _head(plan: Plan) -> Iterator[str]:
    yield (
        f"{plan.name} on {plan.topology}: {plan.n_params:,} parameters, {plan.n_devices} x {plan.device} "
        f"({mesh_words(plan)}); to save memory: {saving_words(plan)}"
    )
    parts = f" in {plan.accumulate} parts" if plan.accumulate > 1 else ""
    yield (
        f"step: {plan.batch_size} x {plan.length} = {plan.tokens:,} tokens{parts}; the run: {plan.steps:,} steps, "
        f"{plan.steps * plan.tokens / 1e9:.3g} billion tokens"
    )
    ours = {name: n for name, n in plan.kernels.items() if name != cudnn.NAME}
    kernels = ", ".join(f"{n} x {name}" for name, n in sorted(ours.items())) or "none"
    kernels = "unknown" if plan.refusal else kernels
    yield f"compiled in {plan.compile_seconds:.0f} s; Pallas kernels in the program: {kernels}"
    if cudnn.NAME in plan.kernels:
        calls = plan.kernels[cudnn.NAME]
        yield f"attention by cuDNN, which compiles only on a GPU: {calls} calls, planned by what they read and write"


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    rows = [
        ("parameters", memory.params, "float32"),
        ("optimizer state", memory.optimizer, ""),
        ("batch", memory.batch, ""),
        ("temporaries", memory.temporaries, f"one array of logits: {size(plan.logits)}"),
        ("peak", memory.peak, f"{memory.peak / memory.capacity:.0%} of {size(memory.capacity)}"),
    ]
    yield "memory of a device"
    for name, number, note in rows:
        yield f"  {name:<16} {size(number):>9}  {note}".rstrip()


def _work(plan: Plan) -> Iterator[str]:
    if plan.refusal:
        yield f"the compiler stopped: {plan.refusal}"
        return
    device = find(plan.device)
    times = plan.times
    n = plan.n_devices
    again = f", and {flops(plan.work.recomputed)} computed again" if plan.work.recomputed else ""
    yield "shortest step, per device"
    yield (
        f"  compute  {duration(times.compute):>8}  {flops(sum(plan.work) / n)} at {flops(device.peak_flops)}/s; "
        f"all devices: {flops(plan.work.model)} of the model{again}"
    )
    speed = size(device.memory_bandwidth)
    yield f"  memory   {duration(times.memory):>8}  {size(plan.memory_bytes)} between instructions at {speed}/s"
    wire = sum(traffic.wire for traffic in plan.traffic)
    speed = size(device.link_bandwidth)
    yield f"  network  {duration(times.network):>8}  {size(wire)} sent at {speed}/s, all links together"
    for traffic in plan.traffic:
        axes = " x ".join(traffic.axes)
        yield f"    {traffic.kind:<18} over {axes:<14} {traffic.count:>5} calls  {size(traffic.wire):>8} sent"
    if plan.open_loops:
        yield f"  {plan.open_loops} loops of unknown length are counted once: memory and network are too low"
    if plan.dtype != "bfloat16":
        yield f"  activations are {plan.dtype}, but the peak rate is for bfloat16"
    yield (
        f"  bound    {duration(times.bound):>8}  by {times.bottleneck}; {duration(times.in_turn)} if nothing overlaps; "
        f"{plan.tokens / times.bound:,.0f} tokens/s, MFU {plan.mfu:.0%} at most"
    )
    yield f"the run at best: {plan.hours:,.3g} hours, {plan.hours * n:,.4g} device-hours"


def advice(plan: Plan) -> list[str]:
    """Flags that make the plan fit, or a plan that fits cheaper; the best first."""
    return list(_to_fit(plan) if not plan.fits else _to_speed_up(plan))


def _copies_into_stacks(plan: Plan) -> bool:
    """Whether scanned layers, which can be unrolled, make a GPU's compiler copy residuals of the backward pass."""
    return plan.scan_layers and plan.remat != "everything" and plan.device in ("h100", "h200")


def _to_fit(plan: Plan) -> Iterator[str]:
    over = plan.memory.peak - plan.memory.capacity
    rows = plan.batch_size // (plan.mesh["data"] * plan.mesh["fsdp"] * plan.accumulate)
    chunked = plan.logits * CHUNK // plan.length
    if not plan.loss_chunk and plan.logits > LARGE_LOGITS * plan.memory.capacity and plan.length > CHUNK:
        yield f"--train.loss-chunk {CHUNK}: arrays of logits of {size(chunked)} in place of {size(plan.logits)}"
    if plan.remat in ("nothing", "projections") and _copies_into_stacks(plan):
        yield "--model.no-scan-layers: no copies of activations into stacks; longer compilation"
    if plan.remat == "nothing":
        yield "--model.remat period (or mixer_inputs): activations are computed again, for a third more FLOPs at most"
    elif plan.remat != "everything":
        scanned = "" if plan.scan_layers else " --model.scan-layers"
        yield f"--model.remat everything{scanned}: fewer activations are kept, for about two thirds more FLOPs"
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
    memory = plan.memory
    times = plan.times
    if plan.device in ("h100", "h200") and memory.peak > PREALLOCATED * memory.capacity:
        yield f"XLA_PYTHON_CLIENT_MEM_FRACTION=0.95: unless told, JAX takes {PREALLOCATED:.0%} of a GPU, too little"
    if plan.remat != "nothing" and memory.peak * REMAT_SAVES < memory.capacity:
        saved = plan.work.recomputed / sum(plan.work)
        free = size(memory.capacity - memory.peak)
        yield f"plan it with --model.remat nothing: {free} are free, and {saved:.0%} of the FLOPs are computed again"
    elif plan.remat not in ("nothing", "projections") and memory.peak * PROJECTIONS_SAVE < memory.capacity:
        yield "plan it with --model.remat projections: outputs of matmuls are kept, and no matmul is computed again"
    if times.bottleneck == "memory" and _copies_into_stacks(plan):
        yield "plan it with --model.no-scan-layers: no copies of activations into stacks; longer compilation"
    if times.bottleneck == "network" and plan.mesh["fsdp"] > 1:
        less = next(n for n in range(2, plan.mesh["fsdp"] + 1) if plan.mesh["fsdp"] % n == 0)
        state = (memory.params + memory.optimizer) * less
        if memory.peak + state < memory.capacity:
            data = plan.mesh["data"] * less
            fsdp = plan.mesh["fsdp"] // less
            room = f"a device has room for {size(state)} of state"
            yield f"--mesh.data {data} --mesh.fsdp {fsdp}: the network bounds the step, and {room}"
    rows = plan.batch_size // (plan.mesh["data"] * plan.mesh["fsdp"])
    if plan.accumulate > 1 and times.bottleneck == "network":
        yield f"a smaller --train.accumulate than {plan.accumulate}: parameters are gathered for each part"
    if rows <= 1 and times.bottleneck == "network":
        yield "fewer devices, or a larger --train.batch-size: one row per device is little work between two exchanges"


def scaled(number: float, unit: str) -> str:
    """Formats with three digits and a power of 1000: `16.4 GB`."""
    power = min(max(int(math.log10(number)) // 3, 0), len(_PREFIXES) - 1) if number >= 1 else 0
    value = number / 1000**power
    digits = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return f"{digits} {_PREFIXES[power]}{unit}"


def size(count: float) -> str:
    return scaled(count, "B")


def flops(count: float) -> str:
    return scaled(count, "FLOP")


def duration(seconds: float) -> str:
    """Formats a duration with three digits."""
    for unit, length in (("s", 1), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
