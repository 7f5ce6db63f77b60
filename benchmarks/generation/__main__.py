"""`python -m benchmarks.generation`: prefill and decode of Based compared with Transformer++; see `--help`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxzoo.cli.flags import flags_of, parse_flags
from jaxzoo.cli.runner import run
from jaxzoo.config.checked import Checked
from jaxzoo.utils.screen import Screen
from jaxzoo.utils.whole_files import write_whole

PROGRAM = "python -m benchmarks.generation"
MODELS = ("Based", "convolutions", "Transformer++")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Measures generation on the first device: prefill against prompt length, decode against context and batch.

    Compares Based, gated convolutions and Transformer++ of equal numbers of parameters by the protocol of Based,
    Figure 4. Writes generation-SIZE-PLATFORM.json and a picture of the same name.
    """

    size: Literal["tiny", "20m", "360m", "1.3b"] = "20m"
    """Parameters of the models; 360m and 1.3b are the paper's, for accelerators."""
    models: tuple[str, ...] = MODELS
    """The models to measure."""
    repeats: int = 20
    """Repetitions of every measurement; medians are reported."""
    lengths: tuple[int, ...] = ()
    """Prompt lengths; empty: those of the size."""
    batches: tuple[int, ...] = ()
    """Batch sizes of decode; empty: those of the size."""
    out: Path = Path("benchmarks/results")
    """Directory of the result."""
    overwrite: bool = False
    """Replaces a result that is there."""

    def __post_init__(self) -> None:
        self.require("models", set(self.models) <= set(MODELS) != set(), f"must be among {', '.join(MODELS)}")
        self.require("repeats", self.repeats >= 1, "must be positive")
        for name in ("lengths", "batches"):
            self.require(name, all(n >= 1 for n in getattr(self, name)), "must be positive")


def main(argv: Sequence[str] | None = None) -> int:
    return run(_measure, argv, interrupted="interrupted; what is done is kept")


def _measure(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))

    from benchmarks.generation.measure import environment, measure
    from benchmarks.generation.models import SIZES
    from benchmarks.generation.plot import draw
    from jaxzoo.utils.host_memory import keep_freed_memory

    keep_freed_memory()
    facts = environment()
    data, picture = (command.out / f"generation-{command.size}-{facts['platform']}.{kind}" for kind in ("json", "png"))
    for file in (data, picture):
        if file.exists() and not command.overwrite:
            raise ValueError(f"{file} exists; replace it with --overwrite, or choose another directory with --out")
    command.out.mkdir(parents=True, exist_ok=True)
    size = SIZES[command.size]
    size = size._replace(lengths=command.lengths or size.lengths, batches=command.batches or size.batches)
    screen = Screen(sys.stdout)
    screen.say(f"{facts['device']}, jax {facts['versions']['jax']}")
    about = {"benchmark": "generation", "size": command.size, "repeats": command.repeats, **facts}
    for report in measure(size, command.repeats, screen.say, command.models):
        write_whole(data, json.dumps(about | report, indent=1) + "\n")
    draw(json.loads(data.read_text()), picture)
    screen.say(f"{data} and {picture}")


if __name__ == "__main__":
    raise SystemExit(main())
