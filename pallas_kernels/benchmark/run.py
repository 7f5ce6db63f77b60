"""Rows of a result: every workload with every candidate, checked, then timed."""

import concurrent.futures
import dataclasses
import functools
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from pallas_kernels.benchmark import checks, programs, timing
from pallas_kernels.benchmark.candidates import Candidate
from pallas_kernels.benchmark.ceilings import Ceilings, floor
from pallas_kernels.benchmark.environment import free_bytes
from pallas_kernels.workload import Workload

CASES_AHEAD = {"cpu": 1, "gpu": 8, "tpu": 8}
"""Number of workloads that are compiled together."""
SEED_STEP = 1000
"""Distance between the seeds of input sets: a workload may use the next few seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the measurement."""

    seconds: float
    repeats: int
    seeds: int | None = None
    """Input sets; None: by size."""
    trace: bool = False
    """Whether to record the times of single kernels."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A workload and its groups."""

    workload: Workload
    groups: tuple[str, ...]


def cases(groups: Mapping[str, Iterable[Workload]], kinds: tuple[str, ...]) -> list[Case]:
    """Workloads of `groups`, without duplicates."""
    found: dict[tuple, Case] = {}
    for group, workloads in groups.items():
        for workload in workloads:
            key = (workload.kind, *workload.sizes.items())
            if workload.kind in kinds:
                before = found[key].groups if key in found else ()
                found[key] = Case(workload=found[key].workload if before else workload, groups=(*before, group))
    return list(found.values())


def all_rows(
    cases: list[Case], candidates: list[Candidate], ceilings: Ceilings, settings: Settings
) -> Iterator[tuple[int, dict]]:
    """Rows of every case, with its index. Programs of several cases are compiled together before timing."""
    ahead = CASES_AHEAD[jax.default_backend()]
    for start in range(0, len(cases), ahead):
        batch = cases[start : start + ahead]
        jobs = [(case.workload, c) for case in batch for c in candidates if case.workload.kind in c.kinds]
        compiled = iter(_compile(jobs, settings))
        for i, case in enumerate(batch):
            mine = [(c, next(compiled)) for c in candidates if case.workload.kind in c.kinds]
            for row in rows(case, mine, ceilings, settings):
                yield start + i, row


def rows(case: Case, compiled: list[tuple[Candidate, Any]], ceilings: Ceilings, settings: Settings):
    """One row per candidate; `compiled` has its program, or an exception."""
    workload = case.workload
    n_sets, calls = programs.plan(workload, jax.default_backend(), settings.seeds)
    kept: dict[Any, list] = {}
    known: dict[Any, Any] = {}
    while compiled:
        candidate, made = compiled.pop(0)  # a program is freed after its row
        row, start = _described(case, candidate, ceilings), time.perf_counter()
        try:
            if isinstance(made, Exception):
                raise made
            sets = _input_sets(workload, candidate, n_sets, kept)
            row |= _measured(workload, candidate, made, sets, calls, known, settings)
        except NotImplementedError as error:
            row |= {"status": "refused", "reason": _line(error)}
        except Exception as error:  # a failing candidate must not affect the others
            row |= _failed(error)
        if row["status"] == "ok" and candidate.same_function:
            row["share_of_floor"] = row["floor_ms"] / row["ms"]
        yield row | {"seconds": round(time.perf_counter() - start, 1)}


def _input_sets(workload: Workload, candidate: Candidate, count: int, kept: dict[Any, list]) -> list[tuple]:
    """Input sets of the workload or of the candidate; `kept` holds the latest ones alone, to save memory."""
    if candidate.inputs not in kept:
        kept.clear()
        kept[candidate.inputs] = [_inputs(workload, candidate, SEED_STEP * i) for i in range(count)]
    return kept[candidate.inputs]


def _inputs(workload: Workload, candidate: Candidate, seed: int) -> tuple:
    return workload.inputs(seed) if candidate.inputs is None else candidate.inputs(workload, seed)


def _compile(jobs: list[tuple[Workload, Candidate]], settings: Settings) -> list[Any]:
    """Compiles programs in parallel; a failed one is replaced by its exception, which `rows` raises again."""

    def lower(workload, candidate):
        with candidate.context():
            function = candidate.build(workload)
            if candidate.program is not None:
                return function
            calls = programs.plan(workload, jax.default_backend(), settings.seeds)[1]
            return programs.lower(function, jax.eval_shape(lambda: _inputs(workload, candidate, 0)), calls)

    def compile_(lowered):
        return lowered.compile() if isinstance(lowered, jax.stages.Lowered) else lowered

    lowered = [_attempt(lower, *job) for job in jobs]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(functools.partial(_attempt, compile_), lowered))


def _attempt(function: Callable, *arguments: Any) -> Any:
    """Result of a function, or its exception."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _measured(
    workload: Workload,
    candidate: Candidate,
    made: Any,
    inputs: list[tuple],
    calls: int,
    known: dict,
    settings: Settings,
) -> dict:
    """Status, errors, memory and times; `known` caches truths that candidates share."""
    if candidate.program is not None:
        program = candidate.program(made, inputs, calls, gradients=workload.kind == "forward_backward")
    else:
        program = programs.JaxProgram(made, inputs, calls)
        free = free_bytes()
        if free is not None and program.needed_bytes() > free:
            gib = [x / 2**30 for x in (program.needed_bytes(), free)]
            return {"status": "out of memory", "reason": "needs {:.1f} GiB of {:.1f} free".format(*gib)}
    chosen = checks.checked_rows(workload)
    key = (candidate.inputs, candidate.truth)
    if key not in known:
        truth = workload.truth if candidate.truth is None else candidate.truth(workload)
        known[key] = checks.expected(truth, inputs[0], chosen)
    actual, finite = program.outputs(chosen)
    errors = checks.errors(actual, known[key])
    objection = checks.objection(errors, finite, checks.dtypes(workload, actual))
    memory = program.memory()
    row = {"errors": errors, "error": max(errors), "temp_bytes": memory.temp, "peak_bytes": memory.peak}
    if objection is not None:
        return row | {"status": "wrong", "reason": objection}
    found = timing.measure(program.batch, calls=calls, seconds=settings.seconds, repeats=settings.repeats)
    if settings.trace:
        row["kernels_us"] = timing.kernels(program.batch, calls)
    batches = {"calls": found.calls, "calls_per_program": calls, "repeats": found.repeats, "input_sets": len(inputs)}
    return row | {"status": "ok", "reason": getattr(program, "note", None), **found.milliseconds, **batches}


def _described(case: Case, candidate: Candidate, ceilings: Ceilings) -> dict:
    seconds, bound = floor(case.workload, ceilings)
    w = case.workload
    return {
        "op": w.op, "groups": list(case.groups), "name": w.name, "kind": w.kind, "sizes": w.sizes,
        "implementation": candidate.name, "floor_ms": 1e3 * seconds, "bound": bound, "flops": w.flops, "bytes": w.bytes,
    }  # fmt: skip


def _failed(error: Exception) -> dict:
    line = _line(error)
    if "RESOURCE_EXHAUSTED" in line or type(error).__name__ == "OutOfMemoryError":
        return {"status": "out of memory", "reason": line}
    traceback.print_exception(error)
    return {"status": "failed", "reason": f"{type(error).__name__}: {line}"}


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
