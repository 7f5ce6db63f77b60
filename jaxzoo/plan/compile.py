"""The real train step, compiled for devices that are not there."""

import collections
import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxzoo.config import ExperimentConfig
from jaxzoo.data.base import Batch
from jaxzoo.plan.collectives import read_traffic
from jaxzoo.plan.hlo import Hlo
from jaxzoo.plan.memory_traffic import memory_bytes
from jaxzoo.plan.plan import Memory, Plan
from jaxzoo.plan.topology import Topology
from jaxzoo.plan.work import policy_name, step_work
from jaxzoo.sharding import make_mesh
from jaxzoo.train.session import Program, check_data, row_devices
from pallas_kernels.compile_check.compiler_text import read_program

_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class RejectedError(Exception):
    """The compiler takes no program of this kind; the message names the kernel where there is one."""


def make_plan(
    config: ExperimentConfig, topology: Topology, *, name: str, say: Callable[[str], None] = lambda line: None
) -> Plan:
    """Compiles the train step of an experiment for a topology and reads off what it takes.

    Args:
      config: the experiment; its data need not be there.
      topology: what to compile for.
      name: of the experiment.
      say: gets a line before each part of the work.

    Raises:
      ValueError: sizes that do not fit together.
      RejectedError: the compiler refuses the program for another reason than its size.
    """
    mesh = make_mesh(config.mesh, topology.devices)
    batch = config.data.abstract_batch(config.train.batch_size)
    check_data(
        config.model,
        vocab_size=0,  # who compiles without the data does not know it
        max_length=batch.tokens.shape[1],
        packed=batch.segment_ids is not None,
    )
    program = Program(config, mesh)
    start = time.perf_counter()
    say("lowering the train step")
    plan = _without_program(program, batch, topology, name)
    with jax.set_mesh(mesh):
        try:
            lowered = program.train_step.lower(program.abstract_state, batch, topology.platform)
            say(f"compiling it for {mesh.size} x {topology.devices[0].device_kind}")
            compiled = lowered.compile()
        except Exception as error:
            return _refused(plan, error, time.perf_counter() - start)
    return _read(plan, compiled, time.perf_counter() - start)


def _without_program(program: Program, batch: Batch, topology: Topology, name: str) -> Plan:
    """What is known before anything is compiled."""
    config, state = program.config, program.abstract_state
    variables = _bytes(state.variables)
    rows = config.train.batch_size // (row_devices(program.mesh) * config.train.accumulate)
    targets = batch.targets.shape[1]
    vocab = config.model.padded_vocab_size
    shares = program.mesh.shape["tensor"] if vocab % program.mesh.shape["tensor"] == 0 else 1
    return Plan(
        name=name,
        topology=topology.name,
        device=topology.device.name,
        mesh=dict(program.mesh.shape),
        remat=policy_name(config.model.remat),
        dtype=config.model.dtype,
        batch_size=config.train.batch_size,
        length=batch.tokens.shape[1],
        accumulate=config.train.accumulate,
        loss_chunk=config.train.loss_chunk,
        logits=4 * rows * min(config.train.loss_chunk or targets, targets) * vocab // shares,
        steps=config.train.steps,
        n_params=program.blueprint.n_params,
        memory=Memory(
            params=variables,
            optimizer=_bytes(state) - variables,
            batch=sum(
                program.row_sharding.shard_shape(x.shape)[0] * x.size // x.shape[0] * x.dtype.itemsize
                for x in jax.tree.leaves(batch)
            ),
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


def _bytes(tree: Any) -> int:
    """Bytes of the shards of one device."""
    shards = ((x.sharding.shard_shape(x.shape), x.dtype.itemsize) for x in jax.tree.leaves(tree))
    return sum(jax.ShapeDtypeStruct(shape, "int8").size * size for shape, size in shards)


def _read(plan: Plan, compiled: Any, seconds: float) -> Plan:
    text = compiled.as_text()
    hlo = Hlo(text)
    said = compiled.memory_analysis()
    held = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes + said.temp_size_in_bytes
    return dataclasses.replace(
        plan,
        memory=dataclasses.replace(plan.memory, peak=said.peak_memory_in_bytes or held),
        memory_bytes=memory_bytes(hlo),
        traffic=tuple(read_traffic(hlo, plan.mesh)),
        open_loops=hlo.open_loops,
        kernels=dict(collections.Counter(each.implementation for each in read_program(text, {}) for _ in each.calls)),
        compile_seconds=seconds,
    )


def _refused(plan: Plan, error: Exception, seconds: float) -> Plan:
    """The plan of a program that is too large; raises for all other reasons."""
    said = str(error)
    used = _USED.search(said)
    if used is None:
        raise RejectedError(f"{plan.topology}: {rejection(error)}") from error
    needed, capacity = (int(float(used[i]) * _UNITS[used[i + 1]]) for i in (1, 3))
    memory = dataclasses.replace(plan.memory, peak=needed, capacity=capacity)
    return dataclasses.replace(plan, memory=memory, compile_seconds=seconds, refusal=used[0])


def rejection(error: Exception) -> str:
    """What a compiler says of a program that it does not take, in one line that names the kernel."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
