"""Train step of a config, compiled ahead of time for absent devices."""

import collections
import dataclasses
import math
import re
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax

from jaxzoo.data.base import Batch
from jaxzoo.parallel.sharding import make_mesh, named_sharding
from jaxzoo.plan import cudnn
from jaxzoo.plan.collectives import read_traffic
from jaxzoo.plan.hlo import Hlo
from jaxzoo.plan.memory_traffic import memory_bytes
from jaxzoo.plan.plan import Memory, Plan, step_work
from jaxzoo.plan.topology import Topology
from jaxzoo.plan.traffic_sources import read_sources
from jaxzoo.train.checks import check_data, check_sequence_axis
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Program
from jaxzoo.utils.screen import Failure
from pallas_kernels.compile_check.compiler_text import read_program

_TOO_LARGE = re.compile(r"required for (.*?) \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
_LOWERINGS = {"/pallas/mosaic_gpu/": "mosaic_gpu", "/pallas/mosaic/": "mosaic_tpu", "/pallas/triton/": "triton"}
"""Folders of JAX that lower Pallas kernels."""
_WORDS = {"Mosaic GPU": "mosaic_gpu", "ptxas": "mosaic_gpu", "Mosaic": "mosaic_tpu", "space=vmem": "mosaic_tpu"}
"""Words in compiler errors -> implementation of the kernel; the first match counts."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


COMPILATION = {"tpu": (150.0, 1.35, 0.5), "cuda": (44.5, 0.45, 0.45)}
"""Seconds for a model of 360M parameters, and growth with the number of parameters (a power), without and with remat;
fitted to benchmarks/results/plans, on two cores."""
LEAST_SECONDS = 10.0


class RejectedError(Failure):
    """The compiler rejects the program; the message names the kernel, if there is one."""


def make_plan(
    config: RunConfig, topology: Topology, *, name: str, say: Callable[[str], None] = lambda line: None
) -> Plan:
    """Compiles the train step of a config for a topology and reads memory, traffic and FLOPs from the program.

    The data need not exist. `say` gets a line before each part of the work.

    Raises:
      ValueError: sizes do not fit together.
      RejectedError: the compiler rejects the program for another reason than its size.
    """
    mesh = make_mesh(config.mesh, topology.devices)
    batch = config.data.abstract_batch(config.train.batch_size)
    check_data(
        config.model,
        vocab_size=0,  # unknown without the data, not checked
        max_length=batch.tokens.shape[1],
        packed=batch.segment_ids is not None,
    )
    check_sequence_axis(config.model, mesh, batch.tokens.shape[1])
    program = Program(config, mesh)
    start = time.perf_counter()
    say("lowering the train step")
    plan = _without_program(program, batch, topology, name)
    with jax.set_mesh(mesh), cudnn.stand_in(topology.platform):
        try:
            lowered = program.train_step.lower(program.abstract_state, batch, topology.platform)
            expected = expected_seconds(topology.platform, program.blueprint.n_params, config.model.remat)
            devices = f"{mesh.size} x {topology.devices[0].device_kind}"
            say(f"compiling it for {devices}, about {expected:.0f} s on two cores")
            compiled = lowered.compile()
        except Exception as error:
            refused = _refused(plan, error, time.perf_counter() - start)
            if refused is None:
                raise
            return refused
    return _read(plan, compiled, time.perf_counter() - start)


def expected_seconds(platform: str, n_params: int, remat: str) -> float:
    """Rough time of a compilation on two cores, within a factor of two for the stored plans."""
    seconds, *powers = COMPILATION["tpu" if platform == "tpu" else "cuda"]
    return max(LEAST_SECONDS, seconds * (n_params / 360e6) ** powers[remat != "nothing"])


def _without_program(program: Program, batch: Batch, topology: Topology, name: str) -> Plan:
    """Makes the part of a plan that needs no compilation."""
    config = program.config
    state = program.abstract_state
    variables, whole = (sum(_shard_bytes(x, x.sharding) for x in jax.tree.leaves(t)) for t in (state.variables, state))
    return Plan(
        name=name,
        topology=topology.name,
        device=topology.device.name,
        mesh=dict(program.mesh.shape),
        remat=config.model.remat,
        scan_layers=config.model.scan_layers,
        dtype=config.model.dtype,
        batch_size=config.train.batch_size,
        length=batch.tokens.shape[1],
        accumulate=config.train.accumulate,
        loss_chunk=config.train.loss_chunk,
        logits=_logits_bytes(program, batch.targets.shape[1]),
        steps=config.train.steps,
        n_params=program.blueprint.n_params,
        memory=Memory(
            params=variables,
            optimizer=whole - variables,
            batch=sum(_shard_bytes(x, program.row_sharding) for x in jax.tree.leaves(batch)),
            peak=0,
            capacity=topology.device.memory,
        ),
        work=step_work(config, batch),
        memory_bytes=0,
        traffic=(),
        open_loops=0,
        kernels={},
        compile_seconds=0.0,
    )


def _logits_bytes(program: Program, targets: int) -> int:
    """Bytes of the largest array of logits on one device, for this many targets per row."""
    train = program.config.train
    model = program.config.model
    shape = (train.batch_size // train.accumulate, targets, model.padded_vocab_size)
    rows, there, vocab = named_sharding(shape, ("batch", "time", "vocab"), program.mesh).shard_shape(shape)
    at_once = math.ceil((train.loss_chunk or targets) * there / targets)
    return 4 * rows * min(at_once, there) * vocab


def _shard_bytes(x: Any, sharding: jax.sharding.Sharding) -> int:
    """Bytes of an array on one device."""
    return math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize


def _read(plan: Plan, compiled: Any, seconds: float) -> Plan:
    text = compiled.as_text()
    hlo = Hlo(text)
    said = compiled.memory_analysis()
    # The peak counts live bytes, on a CPU without temporaries; jax 0.10 does not report the total.
    held = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes + said.temp_size_in_bytes
    total = getattr(said, "total_allocation_bytes", held)
    kernels = ((cudnn.NAME if x.name == cudnn.NAME else x.implementation, x.calls) for x in read_program(text, {}))
    return dataclasses.replace(
        plan,
        memory=dataclasses.replace(plan.memory, peak=max(said.peak_memory_in_bytes, total)),
        memory_bytes=memory_bytes(hlo),
        sources=tuple(read_sources(text, hlo)),
        traffic=tuple(read_traffic(hlo, plan.mesh)),
        open_loops=hlo.open_loops,
        kernels=dict(collections.Counter(name for name, calls in kernels for _ in calls)),
        compile_seconds=seconds,
    )


def _refused(plan: Plan, error: Exception, seconds: float) -> Plan | None:
    """The plan of a program that is too large; None: the error is not one of a compiler.

    Raises:
      RejectedError: the compiler rejects a kernel, or the program for another reason than its size.
    """
    if (found := _TOO_LARGE.search(str(error))) is not None:
        needed, capacity = (int(float(found[i]) * _UNITS[found[i + 1]]) for i in (2, 4))
        if "temporaries" in found[1]:
            needed += plan.memory.held
        memory = dataclasses.replace(plan.memory, peak=needed, capacity=capacity)
        return dataclasses.replace(plan, memory=memory, compile_seconds=seconds, refusal=found[0])
    implementation = rejected_kernel(error)
    if implementation is None and not isinstance(error, jax.errors.JaxRuntimeError):
        return None
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    raise RejectedError(f"{plan.topology}: {implementation or 'the compiler'} says: {said[:300]}") from error


def rejected_kernel(error: BaseException) -> str | None:
    """The implementation of the Pallas kernel that an error is about, and its name if known; None: no kernel.

    Errors of the lowering are recognized by its files in the traceback, later ones by their message.
    """
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    for place, implementation in _LOWERINGS.items():
        if any(place in file for file in files):
            return implementation
    said = str(error)
    for words, implementation in _WORDS.items():
        if words in said:
            named = re.search(r":: ([\w.\-]+)\s*$", said)
            return implementation + (f" kernel {named[1]}" if named else "")
    return None
