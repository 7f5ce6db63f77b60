"""Pieces of the queue for a rented GPU, first to last: what to run, why, and how long it takes."""

import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from benchmarks.layers_fla import LAYERS
from pallas_kernels.kernel_sources import kernel_hash
from pallas_kernels.registry import OPS

KERNELS = {"PALLAS_KERNELS": "all"}
"""Environment of pieces that measure kernels, certified or not."""
TINY_LAYER = "--batch 2 --length 32 --width 32 --heads 2 --streams 1 --seconds 0.01"
TINY_RULE = "--b 1 --t 70 --h 2 --width 8 --rules no_decay --seconds 0.01"
"""Options of a rehearsal."""
REHEARSED = "wkv4 mosaic_gpu forward t40_b1_d256_bfloat16"
"""Case of `pallas_kernels.verify` that a rehearsal runs."""
SOURCES = ("jaxzoo/mixers", "jaxzoo/ops", "jaxzoo/layers", "jaxzoo/models")
"""Folders whose programs the pieces measure, in addition to the kernels."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the command line says of the pieces."""

    rehearse: bool
    """Tiny sizes, on a CPU."""
    jax_folder: str = ""
    """Directory with an installed second JAX; empty: there is none."""
    verify: tuple[str, ...] = ()
    """More options of `pallas_kernels.verify`."""
    fla: bool = False
    """Whether flash-linear-attention is there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One process of a piece."""

    name: str
    words: tuple[str, ...]
    """Command line after the interpreter; {out}, {folder}, {minutes} and {site} are filled in."""
    key: str = ""
    """Hash of the command and of the sources that it measures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Something worth knowing."""

    name: str
    reason: str
    seconds: int
    """Estimated seconds of a task, without compilation where that runs ahead."""
    tasks: tuple[Task, ...]
    how: Literal["check", "ahead", "alone"]
    """check: times nothing, and runs while others compile. ahead: compiles with others, calls `wait_for_turn`, and is
    timed alone. alone: starts at its turn."""
    compile_s: int = 0
    """Estimated seconds of compilation ahead."""
    timeout: int = 60
    """Seconds after which a task is killed, from its turn."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of its processes."""
    python_path: str = ""
    """Directory that comes first on the path of its processes."""


def pieces(setting: Setting) -> list[Piece]:
    """All pieces, the most valuable first."""
    made = [*_verify(setting), *_layers(setting), _delta_rules(setting), *_train_steps(setting), *_generation(setting)]
    if not setting.rehearse:
        made.append(_counters())
    return [dataclasses.replace(piece, tasks=tuple(_keyed(piece, task) for task in piece.tasks)) for piece in made]


def _verify(setting: Setting) -> list[Piece]:
    def piece(name: str, reason: str, python_path: str = "") -> Piece:
        chosen = setting.verify or _uncertified(python_path)
        words = ("-m", "pallas_kernels.verify", "--out", "{out}", "--minutes", "{minutes}", *chosen)
        return Piece(
            name=name,
            reason=reason,
            seconds=120,
            timeout=400,
            how="check",
            environment={"JAX_ENABLE_COMPILATION_CACHE": "false"},
            tasks=(Task(name=name, words=words),) if chosen else (),
            python_path=python_path,
        )

    if setting.rehearse:
        setting = dataclasses.replace(setting, verify=("--only", REHEARSED))
    made = [piece("verify", "kernels that changed get certificates")]
    if setting.jax_folder:
        made.insert(0, piece("verify-second-jax", "kernels get certificates for the second JAX", setting.jax_folder))
    return made


def _uncertified(python_path: str) -> tuple[str, ...]:
    """The option of `pallas_kernels.verify` for ops without a certificate for Hopper and a JAX; (): there is none."""
    script = (
        "from pallas_kernels import certificates, registry\n"
        "print(*(op for op in registry.OPS if ('9.0', op) not in certificates.certified()))"
    )
    path = os.pathsep.join(filter(None, (python_path, *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    ops = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return ("--ops", *ops.stdout.split()) if ops.stdout.split() else ()


def _layers(setting: Setting) -> list[Piece]:
    from benchmarks.subjects import subjects

    words = ["-m", "benchmarks.layers", "--out", "{out}"]
    words += TINY_LAYER.split() * setting.rehearse

    def piece(name: str, reason: str, names: Iterable[str], *flags: str) -> Piece:
        return Piece(
            name=name,
            reason=reason,
            seconds=4,
            how="ahead",
            compile_s=80,
            environment=KERNELS,
            tasks=tuple(Task(name=each, words=(*words, *flags, "--mixer", each)) for each in names),
        )

    names = ["attention", "taylor_linear_attention"] if setting.rehearse else sorted(subjects(), key=_without_peer)
    made = [piece("layers", "one layer of each mixer, and its decode step", names)]
    if setting.fla:
        made.insert(0, piece("layers-fla", "layers of flash-linear-attention", LAYERS, "--peer"))
    return made


def _without_peer(mixer: str) -> bool:
    return mixer not in LAYERS


def _delta_rules(setting: Setting) -> Piece:
    words = ["-m", "benchmarks.delta_rules", "--out", "{folder}"]
    words += TINY_RULE.split() * setting.rehearse
    return Piece(
        name="delta-rules",
        reason="whole delta rules by kernels, XLA and flash-linear-attention",
        seconds=150,
        timeout=300,
        how="alone",
        tasks=(Task(name="delta-rules", words=tuple(words)),),
    )


def _train_steps(setting: Setting) -> list[Piece]:
    words = ["-m", "benchmarks.train_step", "--out", "{out}"]
    words += ["--tiny", "--rows", "2", "--length", "32", "--steps", "1"] * setting.rehearse

    def piece(name: str, reason: str, **flags: str) -> Piece:
        return Piece(
            name=name,
            reason=reason,
            seconds=20,
            compile_s=100,
            how="ahead",
            environment={**KERNELS, **flags},
            tasks=(Task(name=name, words=tuple(words)),),
        )

    cublas = "--xla_gpu_enable_triton_gemm=false"
    return [
        piece("train-step", "a training step of Based 360M by kernel"),
        piece("train-step-cublas", "the same without matmuls by Triton", XLA_FLAGS=cublas),
    ]


def _generation(setting: Setting) -> list[Piece]:
    def piece(size: str, *sizes: str) -> Piece:
        words = ("-m", "benchmarks.generation", "--size", size, "--models", "Based", "Transformer++", *sizes)
        ours = Task(name="jaxzoo", words=(*words, "--repeats", "3", "--out", "{folder}"))
        peer = Task(name="transformers", words=("-m", "benchmarks.generation.peer", "--size", size, "--out", "{out}"))
        return Piece(
            name=f"generation-{size}",
            reason="prefill and decode of Based and Transformer++, and decode of Llama in transformers",
            seconds=60,
            timeout=240,
            how="alone",
            environment=KERNELS,
            tasks=(ours,) if setting.rehearse else (ours, peer),
        )

    if setting.rehearse:
        return [piece("tiny", "--lengths", "8", "--batches", "2")]
    return [piece(size, "--lengths", "4096", "--batches", "1", "128") for size in ("360m", "1.3b")]


def _counters() -> Piece:
    words = ("-m", "benchmarks.kernel_counters", "--out", "{out}")
    return Piece(
        name="counters",
        reason="hardware counters of the two kernels furthest from their bound",
        seconds=60,
        timeout=200,
        how="alone",
        tasks=(Task(name="counters", words=words),),
    )


def _keyed(piece: Piece, task: Task) -> Task:
    known = [task.words, sorted(piece.environment.items()), piece.python_path, _sources()]
    return dataclasses.replace(task, key=hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16])


@functools.cache
def _sources() -> str:
    """Hash of the sources that pieces measure."""
    root = Path(__file__).parents[1]
    files = sorted(file for folder in SOURCES for file in (root / folder).rglob("*.py"))
    texts = [*(kernel_hash(op).encode() for op in OPS), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
