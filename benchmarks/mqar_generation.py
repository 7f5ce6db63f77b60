"""Time and memory of MQAR generation: `python benchmarks/mqar_generation.py`.

Makes all examples as arrays on the host, then times single training batches. Prints one JSON object: seconds (without
compilation) and peak resident bytes for all examples, and milliseconds per batch.
"""

import dataclasses
import json
import resource
import time

import jax
import numpy as np
import tyro

from jaxzoo.tasks import mqar


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Size of the examples; the defaults are the hardest part of Based's training mixture."""

    n_examples: int = 100_000
    """Examples of the data set."""
    length: int = 256
    """Tokens in an example."""
    n_pairs: int = 64
    """Key-value pairs in an example."""
    vocab_size: int = 8192
    """Vocabulary."""
    chunk: int = 4096
    """Examples generated at once."""


def main(config: BenchmarkConfig) -> None:
    report = {"config": dataclasses.asdict(config), "device": jax.devices()[0].device_kind}
    for preset in (mqar.paper, mqar.release):
        for fillers in ("zero", "random", "any"):
            task = preset(config.length, config.n_pairs, vocab_size=config.vocab_size, fillers=fillers)
            report[f"{preset.__name__}_{fillers}_s"] = round(_data_set_seconds(task, config), 2)
    report["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report["batch_64_of_length_64_ms"] = round(_batch_milliseconds(mqar.paper(64, 8)), 3)
    print(json.dumps(report))


def _data_set_seconds(task: mqar.MQARConfig, config: BenchmarkConfig) -> float:
    """Returns the time to make all examples as host arrays, after compilation."""
    numbers = np.arange(config.n_examples)
    chunks = [numbers[at : at + config.chunk] for at in range(0, config.n_examples, config.chunk)]
    jax.block_until_ready([task.labelled(0, chunk) for chunk in (chunks[0], chunks[-1])])
    start = time.perf_counter()
    made = [jax.device_get(task.labelled(0, chunk)) for chunk in chunks]
    seconds = time.perf_counter() - start
    assert sum(len(batch.tokens) for batch in made) == config.n_examples
    return seconds


def _batch_milliseconds(task: mqar.MQARConfig, n_batches: int = 200) -> float:
    """Returns the mean time of a training batch of 64 in compact form."""
    jax.block_until_ready(task.labelled(0, np.arange(64)))
    start = time.perf_counter()
    for n in range(n_batches):
        jax.block_until_ready(task.labelled(0, np.arange(64 * n, 64 * (n + 1))))
    return (time.perf_counter() - start) / n_batches * 1e3


if __name__ == "__main__":
    main(tyro.cli(BenchmarkConfig))
