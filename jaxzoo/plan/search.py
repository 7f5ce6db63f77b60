"""Search for a mesh and a remat policy: candidates are ordered by an estimate, and the first ones compiled.

The estimate only determines the order: compute at the peak, gathers and reductions of parameters and activations by
the formulas of rings, and a lower bound of memory. All reported numbers come from the compiler.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from jaxzoo.data.base import Batch
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.plan.compile import RejectedError, make_plan
from jaxzoo.plan.plan import FORWARD_AGAIN, Plan, step_work
from jaxzoo.plan.plan_report import duration, mesh_words, saving_words, size, verdict
from jaxzoo.plan.topology import Topology
from jaxzoo.train.config import RunConfig

WIDEST_TENSOR = 8
"""Largest size of the axis `tensor`: with more, activations cross the network too often."""


class Proposal(NamedTuple):
    """A config and its expected cost."""

    config: RunConfig
    seconds: float
    """Estimated time of a step: the longer of compute and network."""
    network: float
    """Seconds of the network alone."""
    memory: float
    """Lower bound of the bytes per device."""


def search(config: RunConfig, topology: Topology, *, name: str, most: int, say: Callable[[str], None]) -> Plan:
    """The plan with the shortest step among those that fit; if none fits, the one with the smallest peak.

    The config's remat policy and its mesh, except for the sequence axis, are ignored. Up to `most` candidates are
    compiled. The ratio of a compiled peak to its lower bound is assumed for the other candidates of the same policy.
    `say` gets a line for each part of the work, and the ranking.

    Raises:
      ValueError: no mesh divides the batch.
      RejectedError: the compiler rejects all candidates.
    """
    found = candidates(config, topology)
    if not found:
        rows = config.train.batch_size
        raise ValueError(f"TrainConfig.batch_size={rows} is not divisible by any mesh of {topology.name}; change it")
    capacity = topology.device.memory
    hopeful = [each for each in found if each.memory <= capacity] or [min(found, key=lambda each: each.memory)]
    say(f"{len(found)} meshes and policies, {len(hopeful)} of them may fit; compiling up to {most}")
    plans = list[Plan]()
    refused = None
    larger = dict[str, float]()
    tried = 0
    for each in hopeful:
        if tried == most:
            break
        policy = each.config.model.remat
        if plans and each.memory * larger.get(policy, 1) > capacity:
            continue
        tried += 1
        say(f"{tried} of {most}: {each.config.mesh}, remat {policy}; expected {duration(each.seconds)} per step")
        try:
            plan = make_plan(each.config, topology, name=name, say=say)
        except RejectedError as error:
            refused = error
            say(f"rejected: {error}")
            continue
        plans.append(plan)
        larger[policy] = max(larger.get(policy, 1), plan.memory.peak / each.memory)
        say(verdict(plan) + (f"; {duration(plan.times.bound)} per step at best" if plan.fits else ""))
    if not plans:
        raise refused or RejectedError("nothing was compiled")
    ranked = sorted(plans, key=lambda plan: (not plan.fits, plan.times.bound if plan.fits else plan.memory.peak))
    for place, plan in enumerate(ranked, 1):
        bound = duration(plan.times.bound) if plan.fits else "does not fit"
        say(f"{place}. {mesh_words(plan)}; {saving_words(plan)}: {bound}, peak {size(plan.memory.peak)}")
    return ranked[0]


def candidates(config: RunConfig, topology: Topology) -> list[Proposal]:
    """Meshes that divide the batch, with each remat policy, the shortest expected step first.

    Raises `ValueError` if the sequence axis does not divide the number of devices.
    """
    rows = config.train.batch_size
    sequence = config.mesh.sequence
    n, left = divmod(len(topology.devices), sequence)
    if sequence < 1 or left:
        raise ValueError(
            f"MeshConfig.sequence={sequence}: a search does not change this axis; it must divide the "
            f"{len(topology.devices)} devices of {topology.name}"
        )
    batch = config.data.abstract_batch(rows)
    n_params = make_blueprint(config.model).n_params
    meshes = [
        MeshConfig(data=n // (fsdp * tensor), fsdp=fsdp, sequence=sequence, tensor=tensor)
        for tensor in _divisors(n)
        if tensor <= WIDEST_TENSOR
        for fsdp in _divisors(n // tensor)
        if rows % (n // tensor * config.train.accumulate) == 0
    ]
    found = []
    for mesh in meshes:
        for remat in FORWARD_AGAIN:
            scanned = config.model.scan_layers or remat == "everything"
            model = dataclasses.replace(config.model, remat=remat, scan_layers=scanned)
            tried = dataclasses.replace(config, model=model, mesh=mesh)
            found.append(_expect(tried, topology, batch, n_params))
    return sorted(found, key=lambda each: (each.seconds, each.network))


def _expect(config: RunConfig, topology: Topology, batch: Batch, n_params: int) -> Proposal:
    """Expected time and lower bound of the memory of a config."""
    mesh = config.mesh
    model = config.model
    device = topology.device
    parts = config.train.accumulate
    tokens = batch.tokens.size / (mesh.data * mesh.fsdp * mesh.sequence)
    work = step_work(config, batch)
    compute = sum(work) / (len(topology.devices) * device.peak_flops)
    width = 2 if model.dtype == "bfloat16" else 4
    again = work.recomputed > 0
    gathered = (2 + again) * parts * width * n_params / mesh.tensor * (mesh.fsdp - 1) / mesh.fsdp
    reduced = parts * width * n_params / mesh.tensor * (mesh.fsdp - 1) / mesh.fsdp
    copies = mesh.data * mesh.sequence
    summed = 2 * 4 * n_params / (mesh.tensor * mesh.fsdp) * (copies - 1) / copies
    crossed = 2 * (4 + 2 * again) * model.n_layers * tokens * model.d_model * 4 * (mesh.tensor - 1) / mesh.tensor
    network = (gathered + reduced + summed + crossed) / device.link_bandwidth
    memory = _certain_memory(config, batch, n_params, tokens / parts)
    return Proposal(config, max(compute, network), network, memory)


def _certain_memory(config: RunConfig, batch: Batch, n_params: int, tokens: float) -> float:
    """Bytes per device of state, gradients, saved residuals and one array of logits."""
    mesh = config.mesh
    model = config.model
    chunk = config.train.loss_chunk
    state = 16 * n_params / (mesh.fsdp * mesh.tensor)
    repeats = [fold.repeats for fold in model.folds]
    kept = {
        "nothing": 4 * model.n_layers,
        "projections": 4 * model.n_layers,
        "mixer_inputs": 2 * model.n_layers,
        "period": sum(repeats),
        "everything": sum(map(math.sqrt, repeats)),
    }
    residuals = kept[model.remat] * tokens * model.d_model * 4
    m = batch.targets.shape[1]
    targets = tokens / batch.tokens.shape[1] * (min(chunk, m) if chunk else m)
    return state + residuals + targets * model.padded_vocab_size * 4 / mesh.tensor


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]
