"""Measures generation: prefill against length, decode against context, decode against batch.

The protocol of Based (Arora et al. 2024), Figure 4: prompts of several lengths at batch 2 (left), and generation
without a prompt at several batch sizes (right); in addition decode after prompts of several lengths. The programs are
those of `generate`: prompts are read in chunks of 512, and key-value caches have a fixed capacity, here the number of
tokens, which determines the cost of attention. Compilation and the first run of each program are not timed.
"""

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import host_parameters
from benchmarks.generation.models import Size
from jaxzoo.generation.decode import DecodeState, Rules, decode_block, first_rows, read_chunk, row_keys
from jaxzoo.generation.generate import largest_chunk
from jaxzoo.generation.prompts import check_prompts
from jaxzoo.generation.sampling import Sampling, knobs
from jaxzoo.generation.weights import cast_weights
from jaxzoo.models.accounting import count_parameters, state_bytes
from jaxzoo.models.blueprint import Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModelConfig, ModelState
from jaxzoo.sweep.machine import commit

PREFILL_BATCH = 2
"""Based, Figure 4, left."""

Row = dict[str, Any]
"""One measurement, JSON-able."""


class Subject(NamedTuple):
    """A model with parameters."""

    name: str
    config: LanguageModelConfig
    variables: Variables

    @classmethod
    def make(cls, name: str, config: LanguageModelConfig) -> "Subject":
        """Makes a model with random parameters, cast as `generate` casts them: the cost does not depend on values."""
        shapes = make_blueprint(config, scanned=False).shapes
        return cls(name, *cast_weights(config, host_parameters.draw(shapes)))

    def first_rows(self, batch: int, capacity: int) -> DecodeState:
        return first_rows(self.config, self.variables, batch, capacity)

    def state_bytes(self, capacity: int) -> int:
        return state_bytes(self.config, capacity)


class Times(NamedTuple):
    """Repeated times of one program, in seconds."""

    wall: list[float]
    cpu: list[float]
    """CPU time of this process on all cores, which on a CPU other programs disturb less than wall time."""

    def row(self, subject: Subject, tokens: int, **facts: Any) -> Row:
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        return {
            "model": subject.name,
            **facts,
            "tokens": tokens,
            "seconds": wall,
            "cpu_seconds": cpu,
            "tokens_per_second": tokens / wall,
            "tokens_per_cpu_second": tokens / cpu,
            "all_seconds": self.wall,
            "all_cpu_seconds": self.cpu,
        }


def measure(
    size: Size, repeats: int, say: Callable[[str], None], models: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the growing report of one size after each measurement; `say` receives a line for each."""
    report: dict[str, Any] = {"models": [], "prefill": [], "decode_by_context": [], "decode_by_batch": []}
    for name, config in size.models().items():
        if models is not None and name not in models:
            continue
        subject = Subject.make(name, config)
        facts = {"parameters": count_parameters(config), "layers": config.n_layers, "dtype": config.dtype}
        report["models"].append({"model": name, **facts})
        for kind, row in _rows(subject, size, repeats):
            report[kind].append(row)
            say(f"{name:14} {kind:18} {_in_short(row)}")
            yield report


def environment() -> dict[str, Any]:
    device = jax.devices()[0]
    cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return {
        "platform": device.platform,
        "device": cpu if device.platform == "cpu" else device.device_kind,
        "load_average": os.getloadavg()[0],
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _rows(subject: Subject, size: Size, repeats: int) -> Iterator[tuple[str, Row]]:
    """Yields (kind, measurement); a curve ends where memory runs out."""
    for length in size.lengths:
        try:
            yield from _after_a_prompt(subject, length, size.context_steps, repeats)
        except jax.errors.JaxRuntimeError as error:
            yield "decode_by_context", _out_of_memory(error, subject, context=length, batch=PREFILL_BATCH)
            break
    for batch in size.batches:
        try:
            yield "decode_by_batch", _without_a_prompt(subject, batch, size, repeats)
        except jax.errors.JaxRuntimeError as error:
            yield "decode_by_batch", _out_of_memory(error, subject, batch=batch)
            break


def _after_a_prompt(subject: Subject, length: int, steps: int, repeats: int) -> Iterator[tuple[str, Row]]:
    """Prefill of prompts of `length` tokens, then decode."""
    batch, capacity = PREFILL_BATCH, length + steps
    tokens = np.random.default_rng(0).integers(subject.config.vocab_size, size=(batch, length + 1))
    prompts = check_prompts(list(tokens), n_ids=subject.config.vocab_size)
    cut = prompts.chunks(largest_chunk(subject.config, batch))
    chunks = [(jnp.asarray(c.tokens), jnp.asarray(c.takes_part)) for c in cut]
    latest: list[DecodeState] = []

    def prefill(rows: DecodeState) -> ModelState:
        state = rows.state
        for chunk in chunks:
            state = read_chunk(subject.config, subject.variables, state, *chunk)
        latest[:] = [rows._replace(state=state)]
        return state

    times = _timed(prefill, lambda: subject.first_rows(batch, capacity), repeats)
    yield "prefill", times.row(subject, batch * length, length=length, batch=batch)
    times = _timed_decode(subject, lambda: jax.tree.map(jnp.copy, latest[0]), batch, steps, repeats)
    facts = {"context": length, "batch": batch, "steps": steps, "state_bytes": subject.state_bytes(capacity)}
    yield "decode_by_context", times.row(subject, batch * steps, **facts)


def _without_a_prompt(subject: Subject, batch: int, size: Size, repeats: int) -> Row:
    """Decode from empty states with capacity for `size.generation_length` tokens."""
    capacity, steps = size.generation_length, size.generation_steps
    times = _timed_decode(subject, lambda: subject.first_rows(batch, capacity), batch, steps, repeats)
    facts = {"batch": batch, "steps": steps, "state_bytes": subject.state_bytes(capacity)}
    return times.row(subject, batch * steps, **facts)


def _timed_decode(subject: Subject, start: Callable[[], DecodeState], batch: int, steps: int, repeats: int) -> Times:
    """Times a block of greedy decode steps that starts from `start()`."""
    rules = Rules(
        tail=jnp.zeros((batch, 1), jnp.int32),
        tail_length=jnp.ones((batch,), jnp.int32),
        keys=row_keys(0, jnp.arange(batch, dtype=jnp.uint32)),
        knobs=knobs(Sampling(temperature=0)),
        max_tokens=jnp.int32(steps),
        stop_tokens=jnp.zeros((0,), jnp.int32),
    )
    none = jnp.zeros((batch,), bool)

    def decode(rows: DecodeState) -> jax.Array:
        return decode_block(subject.config, subject.variables, rows, none, rules, block_size=steps)[1]

    return _timed(decode, start, repeats)


def _timed(call: Callable[[DecodeState], Any], start: Callable[[], DecodeState], repeats: int) -> Times:
    """Times `call` on the result of `start` until its result is ready; the first call, which compiles, is not
    counted."""
    times = Times([], [])
    for repeat in range(repeats + 1):
        rows = jax.block_until_ready(start())
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(call(rows))
        if repeat:
            times.wall.append(time.perf_counter() - wall)
            times.cpu.append(time.process_time() - cpu)
    return times


def _out_of_memory(error: RuntimeError, subject: Subject, **facts: Any) -> Row:
    """Returns the last point of a curve. Raises `JaxRuntimeError` for any other error."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise error
    return {"model": subject.name, **facts, "out_of_memory": True}


def _in_short(row: Row) -> str:
    where = " ".join(f"{name} {row[name]:>6}" for name in ("length", "context", "batch") if name in row)
    if "out_of_memory" in row:
        return f"{where}  out of memory"
    return f"{where}  {row['tokens_per_second']:10,.0f} tokens/s  {row['tokens_per_cpu_second']:10,.0f} tokens/CPU-s"
