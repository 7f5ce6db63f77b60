"""Lines of the predicted table: for each program its time and share of the floor, for each kernel what holds it."""

from collections.abc import Iterator

from pallas_kernels.schedule_model.bundles import Schedule
from pallas_kernels.schedule_model.forecast import Call
from pallas_kernels.schedule_model.hopper import Prediction, Role


def lines(title: str, calls: list[Call], floor: float) -> list[str]:
    """The program's line, then its kernels', then one for what XLA does between them; microseconds.

    Args:
      title: what ran, for what.
      calls: of `forecast`.
      floor: microseconds.
    """
    total = sum(call.total for call in calls)
    share = f", {floor / total:.0%} of the floor ({floor:.0f} us)" if total else ""
    found = [f"{title}: predicted {total:.0f} us{share}"]
    for call in calls:
        if call.gpu is not None or call.tpu is not None:
            found += _kernel(call)
    rest = [call for call in calls if call.gpu is None and call.tpu is None]
    if rest:
        moved = sum(call.bytes * call.times for call in rest)
        found.append(f"    {sum(x.total for x in rest):8.1f} us  XLA: {len(rest)} operations, {moved / 1e6:.0f} MB")
    return found


def _kernel(call: Call) -> Iterator[str]:
    limits = {"memory": call.memory, "matmuls": call.matmuls}
    held = next((name for name, limit in limits.items() if call.microseconds <= limit), "schedule")
    yield f"    {call.total:8.1f} us  {call.name}, held by its {held}; memory alone {call.memory:.1f} us"
    if call.gpu is not None:
        yield from (f"                 {text}" for text in _gpu(call.gpu))
    if call.tpu is not None:
        yield f"                 matmuls alone {call.matmuls:.1f} us at the matrix units' peak"
        yield from (f"                 {text}" for text in _tpu(call.tpu))


def _gpu(x: Prediction) -> Iterator[str]:
    yield (
        f"schedule {x.schedule:.1f} us: {_many(x.blocks, 'block')}, {x.resident} a multiprocessor, "
        f"{_many(x.waves, 'wave')}; issue slots {x.issue:.0%}, tensor cores {x.tensor:.0%}"
    )
    yield from (_role(role) for role in x.roles)
    if x.unknown_trips:
        yield f"! {_many(x.unknown_trips, 'loop')} counted once: trips unknown; more than this"


def _role(x: Role) -> str:
    groups = f"warpgroup{'s' if len(x.warpgroups) > 1 else ''} {', '.join(map(str, x.warpgroups))}"
    waits = ", ".join(f"{n:.0f} for {why}" for why, n in sorted(x.waits.items(), key=lambda e: -e[1]) if n >= 1)
    wgmma = sum(x.matmuls.values())
    return (
        f"{groups}: {x.cycles:.0f} cycles x {x.trips:.4g}; {x.instructions} instructions, {wgmma} wgmma in "
        f"{_many(x.rounds, 'round')}, {_many(x.barriers, 'barrier')}; cycles waited: {waits or 0}"
    )


def _tpu(x: Schedule) -> Iterator[str]:
    used = ", ".join(f"{unit} {share:.0%}" for unit, share in sorted(x.units.items(), key=lambda e: -e[1])[:4])
    yield f"{x.bundles:.0f} bundles per step x {x.steps}; slots: {used}; fills {x.fills:.0%}, spills {x.spills:.0%}"
    if x.unknown_trips:
        yield f"! {_many(x.unknown_trips, 'loop')} counted once: trips unknown; more than this"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
