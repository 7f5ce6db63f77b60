"""Writes to shared memory that TMA, or warps behind an mbarrier, may read before they are there.

Matmuls and TMA read shared memory through the asynchronous proxy, which sees what threads wrote only after
FENCE.VIEW.ASYNC. Every way from a write (STS, STSM) to an arrival at an mbarrier or to a TMA store must pass one. What
a matmul reads is in descriptors that the text does not show: a warpgroup's own writes are not followed to its matmuls.
"""

from pallas_kernels.schedule_model.sass import Kernel

_WRITES = ("STS", "STSM")


def unfenced_writes(kernel: Kernel) -> list[str]:
    """A line for each arrival and TMA store that a write reaches without a fence."""
    found = {}
    for place, x in enumerate(kernel.code):
        if x.base in _WRITES and (reader := _first_reader(kernel, place + 1)) is not None:
            found.setdefault(reader, f"{kernel.code[reader].text} follows {x.text} without FENCE.VIEW.ASYNC")
    return list(found.values())


def _first_reader(kernel: Kernel, start: int) -> int | None:
    """The first arrival or TMA store on any way from `start` that no fence is on."""
    waiting, seen = [start], set()
    while waiting:
        place = waiting.pop()
        while place < len(kernel.code) and place not in seen:
            seen.add(place)
            x = kernel.code[place]
            if x.operation.startswith("FENCE.VIEW.ASYNC"):
                break
            if x.base == "UTMASTG" or x.operation.startswith("SYNCS.ARRIVE"):
                return place
            target = kernel.target(place)
            if target is not None:
                waiting.append(target)
            if x.base in ("EXIT", "RET", "BRA") and not x.conditional:
                break
            place += 1
    return None
