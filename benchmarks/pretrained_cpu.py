"""Prefill and greedy decode of a real model on a CPU, alternating with transformers.

    jaxzoo convert --from smollm2 --out runs/smollm2
    jaxzoo convert --run runs/smollm2 --to smollm2-folder
    python -m benchmarks.pretrained_cpu --folder smollm2-folder --peer PYTHON --out FILE.json

PYTHON has torch and transformers. Both compute float32 on the same folder; each number is the median over rounds of the
seconds of one sequence, wall and of the CPU. `--llama PYTHON FILE.gguf` adds llama.cpp on quantized weights, in its own
process: PYTHON has xllamacpp, whose wheels hold llama.cpp compiled for AVX2. (llama-cpp-python has no wheel on PyPI.)
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxzoo.generation import Generation, Sampling
from jaxzoo.interop import load
from jaxzoo.models.language_model import LanguageModel

PEER = Path(__file__).with_name("pretrained_cpu_torch.py")
LLAMA = Path(__file__).with_name("pretrained_cpu_llama.py")
TASKS = ("prefill 256", "decode 128 32")


def ours(model: LanguageModel, task: str) -> tuple[float, float]:
    name, n, *rest = task.split()
    tokens = (np.arange(int(n)) * 7919 % model.config.vocab_size).astype(np.int32)
    n_new = int(rest[0]) if rest else 1
    greedy = Sampling(temperature=0.0)
    generation = Generation(model, [tokens], max_tokens=n_new, sampling=greedy)
    began = time.perf_counter(), time.process_time()
    generation.read()
    if name == "decode":
        began = time.perf_counter(), time.process_time()
    for _ in generation:
        pass
    return time.perf_counter() - began[0], time.process_time() - began[1]


@contextlib.contextmanager
def asking(words: list[str]) -> Iterator[Callable[[str], tuple[float, ...]]]:
    """Starts a peer. Yields a function that gives its wall and CPU seconds of a task."""
    quiet = {**os.environ, "GOMP_SPINCOUNT": "0", "OMP_WAIT_POLICY": "passive"}  # waiting threads cost no CPU time
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet) as peer:
        assert peer.stdin
        assert peer.stdout
        to, back = peer.stdin, peer.stdout

        def ask(task: str) -> tuple[float, ...]:
            to.write(f"{task}\n")
            to.flush()
            return tuple(map(float, back.readline().split()))

        yield ask
        to.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Prefill and greedy decode of a real model on a CPU, next to transformers."
    )
    parser.add_argument("--folder", required=True)
    parser.add_argument("--peer", required=True, metavar="PYTHON")
    parser.add_argument("--llama", nargs=2, metavar=("PYTHON", "FILE.gguf"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    model = load(options.folder).model
    peers = {"transformers": [options.peer, str(PEER), options.folder]}
    if options.llama:
        peers["llama.cpp, quantized"] = [options.llama[0], str(LLAMA), options.llama[1]]
    found: dict[str, dict[str, list[tuple[float, ...]]]] = {task: {} for task in TASKS}
    with contextlib.ExitStack() as opened:
        asked = {name: opened.enter_context(asking(words)) for name, words in peers.items()}
        for i in range(options.rounds + 1):  # the first compiles
            for task in TASKS:
                rows = {name: ask(task) for name, ask in asked.items()} | {"jaxzoo": ours(model, task)}
                for name, row in rows.items():
                    found[task].setdefault(name, []).extend([row] * (i > 0))
    medians = {
        task: {
            name: [round(statistics.median(column), 4) for column in zip(*rows, strict=True)]
            for name, rows in each.items()
        }
        for task, each in found.items()
    }
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "rounds": options.rounds}
    report = {**about, "columns": ["wall_s", "cpu_s"], "medians": medians, "rows": found}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    for task, each in medians.items():
        print(task, each)


if __name__ == "__main__":
    main()
