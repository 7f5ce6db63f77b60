"""Pieces of the queue for a rented GPU, the most valuable first: what to run, why, and how long it takes."""

import dataclasses
import functools
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from benchmarks.layers_fla import LAYERS
from benchmarks.subjects import subjects
from jaxzoo.linearization import MIXERS
from pallas_kernels.certificates import ops_in
from pallas_kernels.kernel_sources import LANGUAGES, kernel_hash
from pallas_kernels.registry import FUSED, OPS, load
from pallas_kernels.workload import SEQUENCE_KINDS

SOURCES = ("jaxzoo/mixers", "jaxzoo/ops", "jaxzoo/layers", "jaxzoo/models")
"""Folders whose programs the pieces measure, in addition to the kernels."""
TINY = {
    "cross_entropy": "--rows 64 --width 32 --vocabulary 100 --seconds 0.01",
    "delta_rules": "--b 1 --t 70 --h 2 --width 8 --seconds 0.01",
    "generation": "--size tiny --lengths 8 --batches 2",
    "layers": "--batch 2 --length 32 --width 32 --heads 2 --streams 1 --seconds 0.01",
    "train_step": "--tiny --rows 2 --length 32 --seconds 0.01",
}
"""Additional options of a rehearsal."""
REHEARSED = ("--only", "wkv4 mosaic_gpu forward t40_b1_d256_bfloat16")
"""Case of `pallas_kernels.verify` in a rehearsal."""
PREDICTED = {
    "short_conv": "short convolutions of Based and Mamba, b8 t2048 d2048: at least 68, 45 us; backward 115, 70 us",
    "residual_norm": "addition and RMSNorm of Based 360M, b16 t2048 d1024: at least 135 us; backward 183 us",
    "decode_step": "one step at batch 128, at least: Taylor 163 MB, 55 us; window 34 MB, 11 us; cache of 1,024 slots "
    "537 MB, 180 us; convolution 3.7 MB, 1.2 us; one launch each",
    "taylor_attention": "goal 300 us forward, 1,000 with gradients (fla 1,775 forward)",
    "gated_linear_attention": "goal, decay per head: 219 us forward, 750 with gradients (fla 219 forward)",
    "delta_chunks": "goal of the whole rule with `ut_transform`: 570 us forward (fla 570)",
    "ut_transform": "goal of the whole rule with `delta_chunks`: 570 us forward (fla 570)",
    "selective_scan": "at least 213 us forward, 1,051 with gradients (instructions; goal 600, 2,500)",
    "wkv4": "at least 105 us forward, 270 with gradients (bytes; instructions 61, 215)",
}
"""Times of the Triton kernels on an H100 at the first headline shape before any measurement: goals, or what follows
from the bytes and instructions of the compiled kernels."""

KERNEL_FIGURES = (
    ("based-figure-5", "taylor_attention", "fig5_batch fig5_length", "forward of Taylor attention by batch and length"),
    ("based-figure-6", "taylor_attention", "step", "update of the Taylor state by batch"),
    ("based-figure-7", "sliding_window", "fig7_batch step", "sliding windows by batch, and their next token"),
)
"""Name, op, groups of shapes and content of Based's figures of kernels."""
SWEEPS = (
    (
        "text-tables",
        "text_tables",
        1,
        "small models of the papers' tables of text, 31 to 44M parameters; 685 PFLOP, 5 to 10 calls (a guess)",
    ),
    ("cat-figure-5", "cat_figure5", 16, "CAT, Figure 5, widths 32 to 128 at N = 64 to 256; some 3 calls (a guess)"),
    ("cat-figure-6", "cat_figure6", 16, "CAT, Figure 6, trained at 128, asked at up to 1,024; some 2 calls (a guess)"),
)
"""Name, experiment, workers and content of sweeps at scale `device`; each call makes some runs. The text of
`text-tables` is that of `benchmarks.linearization`."""

STEP = (
    "517 GB with Triton's norms and convolutions, 569 without; from 341 to 353 ms on an H100 to some 330 at 2.98 TB/s"
)
"""Prediction from the compiled programs (docs/scale.md) and the measured step."""
LOSS = "32,768 targets: 10.1 TFLOP and some 36 GB, 28 ms on an H100; with logits computed twice 13.5 TFLOP, 21 ms"
"""Prediction at 650 TFLOP/s and 2.98 TB/s, for jaxzoo's form and for one that writes no logits."""

DECODE = "Based 363M, batch 128: at most 342 launches, 3.4 GB per step; at 4.1 us per launch of an H200 1.4 ms"
"""Prediction from the compiled program, and from the mean time of a kernel in the last trace of decode steps."""
UNSPLIT = "the same without partial sums of matmuls: 2.1 GB per step instead of 3.4, with fewer blocks per matmul"

How = Literal["check", "ahead", "alone"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """One process of the queue."""

    name: str
    """Unique name; the part before a colon is the group."""
    reason: str
    words: tuple[str, ...]
    """Command line after the interpreter; {out}, {folder}, {state}, {minutes} and {fla} are filled in."""
    how: How
    """check: times nothing, and runs while others compile. ahead: compiles with others, calls `wait_for_turn`, then is
    timed alone. alone: starts at its turn."""
    seconds: int
    """Estimated time of its turn."""
    timeout: int = 60
    """Seconds of its turn after which it is killed."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python_path: str = ""
    """Directory to put first on its path."""

    @property
    def group(self) -> str:
        return self.name.partition(":")[0]

    @property
    def key(self) -> str:
        """Hash of the command and of the sources that it measures."""
        known = [self.words, sorted(self.environment.items()), self.python_path, _sources()]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def pieces(
    *, rehearse: bool, fla: bool, inputs: bool = False, jax_folder: str = "", verify: tuple[str, ...] = ()
) -> list[Piece]:
    """Returns all pieces; for a rehearsal tiny sizes of one piece of each kind that needs no CUDA. `inputs`: the model
    and the text of `benchmarks.linearization` are there. `verify` holds options of `pallas_kernels.verify`; empty: the
    ops without a certificate."""

    def benchmark(
        name: str, reason: str, command: str, seconds: int, timeout: int = 60, how: How = "ahead", flags: str = ""
    ) -> Piece:
        module, *words = shlex.split(command)
        words += shlex.split(TINY.get(module, "")) if rehearse else []
        environment = {"PALLAS_KERNELS": "all", **({"XLA_FLAGS": flags} if flags else {})}
        return Piece(
            name=name, reason=reason, words=("-m", f"benchmarks.{module}", *words), how=how, seconds=seconds,
            timeout=timeout, environment=environment,
        )  # fmt: skip

    mixers = ["attention", "taylor_linear_attention"] if rehearse else sorted(subjects(), key=_has_no_peer)
    rules = ["no_decay"] if rehearse else ["decay_per_token", "decay_per_channel", "general", "no_decay"]
    sizes = ["360m"] if rehearse else ["360m", "1.3b"]
    layer, generation = "layers --out {out} --mixer", "--models Based Transformer++ --lengths 4096 --batches 1 128"
    step, peers = "train_step --out {out}", " --peers {fla}" * fla
    made = [_verify("verify", "", REHEARSED if rehearse else verify)]
    if jax_folder:
        made.insert(0, _verify("verify-second-jax", jax_folder, verify))
    if not rehearse:
        made.append(_verify("verify-triton", "", ("--kernels", "triton")))
    made += [benchmark(f"layers: {m}", "layers and decode steps of all mixers", f"{layer} '{m}'", 3) for m in mixers]
    if fla:
        told = "the same layers of flash-linear-attention"
        made += [benchmark(f"layers-fla: {mixer}", told, f"{layer} {mixer} --peer", 3) for mixer in LAYERS]
    for rule in rules:
        command = f"delta_rules --out {{folder}} --rules {rule}{peers}"
        made.append(benchmark(f"delta-rules: {rule}", "whole delta rules by kernels, XLA and peers", command, 25, 90))
    made.append(benchmark("train-step", f"a training step of Based 360M by kernel; {STEP}", step, 20))
    made.append(
        benchmark("cross-entropy", f"next to tokamax's, if it is installed; {LOSS}", "cross_entropy --out {out}", 15)
    )
    if not rehearse:
        flags = "--xla_gpu_enable_triton_gemm=false"
        made.append(benchmark("train-step-cublas", "the same without matmuls by Triton", step, 20, flags=flags))
        made += [_triton(op) for op in OPS if "triton" in load(op, "api").BACKENDS]
        made += map(_fused, FUSED)
    for size in sizes:
        command = f"generation --out {{folder}} --repeats 3 --size {size} {generation}"
        told = f"prefill and decode; {DECODE}"
        made.append(benchmark(f"generation: {size}", told, command, 120, 240, how="alone"))
    if not rehearse:
        command = "generation --out {folder} --repeats 3 --size 360m --models Based --lengths 4096 --batches 1 128"
        flags = "--xla_gpu_experimental_force_split_k=1"
        made.append(benchmark("generation-unsplit", UNSPLIT, command, 60, 150, how="alone", flags=flags))
        told, command = "decode of Llama in transformers", "generation.peer --out {out} --size 360m"
        made.append(benchmark("generation-peer", told, command, 40, 120, how="alone"))
        told, command = "counters of the kernels furthest from their bound", "kernel_counters --out {out}"
        made.append(benchmark("counters", told, command, 60, 200, how="alone"))
        made += [_kernel_figure(*each) for each in KERNEL_FIGURES]
        told, command = "Based, Figure 4: prefill by length, decode by batch", "generation --out {folder} --repeats 3"
        for size in sizes:
            words = f"{command} --size {size} --models Based Transformer++"
            made.append(benchmark(f"based-figure-4: {size}", told, words, 400, 530, how="alone"))
        made += [_sweep(*each) for each in SWEEPS if inputs or each[0] != "text-tables"]
    if rehearse or inputs:
        made += [_linearize(mixer, rehearse) for mixer in MIXERS[: 1 if rehearse else None]]
    return [piece for piece in made if piece.words]


def _linearize(mixer: str, rehearse: bool) -> Piece:
    """Conversion of SmolLM2; stopped, it continues in the next call."""
    words = ("-m", "benchmarks.linearization", "run", "--state", "{state}", "--mixer", mixer, "--out", "{out}")
    return Piece(
        name=f"linearize: {mixer}", reason="SmolLM2 with a state of fixed size: loss and recall by stage",
        words=(*words, *["--tiny"] * rehearse), how="alone", seconds=450, timeout=530,
    )  # fmt: skip


def _triton(op: str) -> Piece:
    """Errors and times of an op's Triton kernels, next to its Hopper kernels, XLA and fla's Triton kernels."""
    words = f"--groups headline --kinds {' '.join(SEQUENCE_KINDS)} --implementations triton mosaic_gpu xla"
    words += " --peers benchmarks/torch_peers.py --trace --out {folder}"
    return Piece(
        name=f"triton: {op}", reason=f"Triton kernels next to Hopper's and fla's; {PREDICTED[op]}",
        words=("-m", "pallas_kernels.benchmark", op, *words.split()), how="alone", seconds=60, timeout=180,
    )  # fmt: skip


def _fused(op: str) -> Piece:
    """Errors and times of a fused operation, next to XLA."""
    words = ("-m", "pallas_kernels.benchmark", op, "--groups", "headline", "--implementations", "triton", "xla")
    return Piece(
        name=f"fused: {op}", reason=PREDICTED[op], words=(*words, "--out", "{folder}"), how="alone", seconds=30,
        timeout=120,
    )  # fmt: skip


def _kernel_figure(name: str, op: str, groups: str, reason: str) -> Piece:
    """Errors and times at the shapes of a figure; `benchmarks.queue_pictures` draws them."""
    words = ("-m", "pallas_kernels.benchmark", op, "--groups", *groups.split(), "--kinds", "forward", "step")
    return Piece(
        name=name, reason=f"Based, Figure {name[-1]}: {reason}", words=(*words, "--out", "{folder}"), how="alone",
        seconds=120, timeout=300, environment={"PALLAS_KERNELS": "all"},
    )  # fmt: skip


def _sweep(name: str, experiment: str, workers: int, reason: str) -> Piece:
    """Runs of an experiment at scale `device`; the next call continues."""
    words = ("-m", "benchmarks.sweep_piece", "--experiment", f"experiments/{experiment}.py", "--scale", "device")
    words += ("--workers", str(workers), "--state", "{state}", "--minutes", "{minutes}", "--out", "{out}")
    return Piece(name=name, reason=reason, words=words, how="alone", seconds=450, timeout=530)


def _has_no_peer(mixer: str) -> bool:
    return mixer not in LAYERS


def _verify(name: str, python_path: str, options: tuple[str, ...]) -> Piece:
    """Verification of kernels; without words if all ops have certificates for Hopper and this JAX."""
    chosen = options or _uncertified(python_path)
    words = ("-m", "pallas_kernels.verify", "--out", "{out}", "--minutes", "{minutes}", *chosen)
    return Piece(
        name=name, reason="certificates of kernels", words=words if chosen else (), how="check", seconds=120,
        timeout=400, environment={"JAX_ENABLE_COMPILATION_CACHE": "false"}, python_path=python_path,
    )  # fmt: skip


@functools.cache
def _uncertified(python_path: str) -> tuple[str, ...]:
    """Returns the option of `pallas_kernels.verify` for ops without a certificate in the JAX on a path."""
    script = (
        "from pallas_kernels import certificates, registry\n"
        "print(*(op for op in registry.OPS if ('9.0', op) not in certificates.certified()))"
    )
    path = os.pathsep.join(filter(None, (python_path, *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return ("--ops", *done.stdout.split()) if done.stdout.split() else ()


@functools.cache
def _sources() -> str:
    root = Path(__file__).parents[1]
    files = sorted(file for folder in SOURCES for file in (root / folder).rglob("*.py"))
    hashes = [kernel_hash(op, language) for language in LANGUAGES for op in ops_in(language)]
    texts = [*(text.encode() for text in hashes), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
