"""Plans as text: one in full, several as a table."""

from collections.abc import Iterator, Sequence

from jaxzoo.plan.advice import advice
from jaxzoo.plan.collectives import Traffic
from jaxzoo.plan.plan import Plan, find
from jaxzoo.plan.units import duration, flops, size

COLUMNS = (
    "run", "devices", "mesh", "to save memory", "peak / capacity", "step at best", "bound by", "tokens/s", "MFU",
    "hours", "device-hours",
)  # fmt: skip


def describe(plan: Plan) -> str:
    """All that a plan says, and what to change."""
    return "\n".join(["", *_head(plan), "", *_memory(plan), "", *_work(plan), "", *_verdict(plan)])


def verdict(plan: Plan) -> str:
    """Whether it fits, in one line."""
    memory = plan.memory
    if plan.fits:
        return f"fits: {size(memory.peak)} of {size(memory.capacity)}, {size(memory.capacity - memory.peak)} to spare"
    return (
        f"DOES NOT FIT: {size(memory.peak)} of {size(memory.capacity)}, {size(memory.peak - memory.capacity)} too many"
    )


def table(plans: Sequence[Plan]) -> str:
    """Plans side by side, as Markdown."""
    rows = [COLUMNS, tuple("-" * 3 for _ in COLUMNS), *map(_row, plans)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def mesh_words(plan: Plan) -> str:
    """The axes that are wider than one device."""
    return " ".join(f"{name}={size}" for name, size in plan.mesh.items() if size > 1) or "one device"


def saving_words(plan: Plan) -> str:
    """How the plan saves memory."""
    parts = [f"remat {plan.remat}"] if plan.remat != "nothing" else []
    parts += [f"loss chunk {plan.loss_chunk}"] if plan.loss_chunk else []
    parts += [f"{plan.accumulate} parts"] if plan.accumulate > 1 else []
    return ", ".join(parts) or "nothing"


def _row(plan: Plan) -> tuple[str, ...]:
    name = f"{plan.name}, {plan.batch_size} x {plan.length}"
    device = f"{plan.n_devices} x {plan.device}"
    memory = f"{size(plan.memory.peak)} / {size(plan.memory.capacity)}"
    if not plan.fits:
        return (name, device, mesh_words(plan), saving_words(plan), f"**{memory}**", "does not fit", *("",) * 5)
    times = plan.times
    return (
        name,
        device,
        mesh_words(plan),
        saving_words(plan),
        memory,
        duration(times.bound),
        times.bottleneck,
        f"{plan.tokens / times.bound:,.0f}",
        f"{plan.mfu:.0%}",
        f"{plan.hours:,.3g}",
        f"{plan.hours * plan.n_devices:,.4g}",
    )


def _head(plan: Plan) -> Iterator[str]:
    device = find(plan.device)
    yield (
        f"{plan.name} on {plan.topology}: {plan.n_params:,} parameters, {plan.n_devices} x {device.name} "
        f"({mesh_words(plan)}); to save memory: {saving_words(plan)}"
    )
    parts = f" in {plan.accumulate} parts" if plan.accumulate > 1 else ""
    yield (
        f"a step: {plan.batch_size} x {plan.length} = {plan.tokens:,} tokens{parts}; the run: {plan.steps:,} steps, "
        f"{plan.steps * plan.tokens / 1e9:.3g} billion tokens"
    )
    kernels = ", ".join(f"{n} x {name}" for name, n in sorted(plan.kernels.items())) or "none"
    kernels = "unknown" if plan.refusal else kernels
    yield f"compiled in {plan.compile_seconds:.0f} s; Pallas kernels in the program: {kernels}"


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
    device, times, n = find(plan.device), plan.times, plan.n_devices
    again = f", and {flops(plan.work.recomputed)} computed again" if plan.work.recomputed else ""
    yield "a step at best, on each device"
    yield (
        f"  compute  {duration(times.compute):>8}  {flops(sum(plan.work) / n)} at {flops(device.peak_flops)}/s; "
        f"all devices: {flops(plan.work.model)} of the model{again}"
    )
    speed = size(device.memory_bandwidth)
    yield f"  memory   {duration(times.memory):>8}  {size(plan.memory_bytes)} between instructions at {speed}/s"
    wire, speed = sum(traffic.wire for traffic in plan.traffic), size(device.link_bandwidth)
    yield f"  network  {duration(times.network):>8}  {size(wire)} sent at {speed}/s, all links together"
    for traffic in plan.traffic:
        yield f"    {_sent(traffic)}"
    if plan.open_loops:
        yield f"  {plan.open_loops} loops of unknown length are counted once: memory and network are too low"
    if plan.dtype != "bfloat16":
        yield f"  activations are {plan.dtype}, and the peak is that of bfloat16"
    yield (
        f"  bound    {duration(times.bound):>8}  by {times.bottleneck}; {duration(times.in_turn)} if nothing overlaps; "
        f"{plan.tokens / times.bound:,.0f} tokens/s, MFU {plan.mfu:.0%} at most"
    )
    yield f"the run at best: {plan.hours:,.3g} hours, {plan.hours * n:,.4g} device-hours"


def _sent(traffic: Traffic) -> str:
    return (
        f"{traffic.kind:<18} over {' x '.join(traffic.axes):<14} {traffic.count:>5} calls  {size(traffic.wire):>8} sent"
    )


def _verdict(plan: Plan) -> Iterator[str]:
    yield verdict(plan)
    found = advice(plan)
    if found:
        yield "to make it fit:" if not plan.fits else "to make it faster:"
    for line in found:
        yield f"  {line}"
