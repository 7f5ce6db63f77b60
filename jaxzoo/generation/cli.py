"""The command line of `python -m jaxzoo.generate`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from jaxzoo.checked import Checked
from jaxzoo.generation.sampling import Sampling
from jaxzoo.generation.text import check_stops
from jaxzoo.train.cli import UsageError, flags_of, parse_flags

PROGRAM = "python -m jaxzoo.generate"

Repeatable = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Continues prompts with the language model that a run on text has trained.

    Text goes to standard output as it comes, all else to standard error. Several prompts are continued
    together, and their texts follow one another.
    """

    run: Path
    """Directory of the run, such as runs/lm-based_tiny."""
    prompt: Repeatable = ()
    """Text to continue; give it again for another text. Write --prompt='-x' for one that begins with a dash."""
    prompt_file: Repeatable = ()
    """File with a text to continue, to its last newline; - is standard input."""
    max_tokens: int = 200
    """Most new tokens of a text."""
    temperature: float = Sampling.temperature
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: int = Sampling.top_k
    """How many of the likeliest tokens may be drawn; 0: all."""
    top_p: float = Sampling.top_p
    """Probability that the tokens which may be drawn have together at least; 1: all."""
    seed: int = 0
    """Seed of the draws: the same one gives the same texts."""
    stop: Repeatable = ()
    """String that ends a text, and is left out of it; give it again for another one."""
    checkpoint: int = 0
    """Step of the checkpoint; 0: the newest."""
    echo: bool = False
    """Prints each prompt before its continuation."""

    def __post_init__(self) -> None:
        self.require("max_tokens", self.max_tokens >= 1, "must be positive")
        self.require("seed", 0 <= self.seed < 2**32, "must be in [0, 2^32)")
        self.require("checkpoint", self.checkpoint >= 0, "must be a step", "0 is the newest")
        check_stops(self.stop)
        _ = self.sampling

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


def parse_command(argv: Sequence[str]) -> Command:
    """Reads the command line; prints help and exits with 0 where asked to.

    Raises:
      UsageError: a mistake in it.
    """
    return parse_flags(Command, argv, prog=PROGRAM, known=list(flags_of(Command(run=Path()))))


def read_prompts(command: Command) -> list[str]:
    """The texts to continue: those of --prompt, then those of --prompt-file.

    Raises:
      UsageError: there is none, or one cannot be read, is empty or not UTF-8.
    """
    texts = [(f"--prompt {text!r}", text.encode("utf-8", errors="surrogateescape")) for text in command.prompt]
    for name in command.prompt_file:
        texts.append((f"--prompt-file {name}", _read(name)))
    if not texts:
        raise UsageError("nothing to continue: give --prompt TEXT, or --prompt-file FILE (- is standard input)")
    return [_decoded(source, data) for source, data in texts]


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"--prompt-file {name} cannot be read: {error.strerror}") from error


def _decoded(source: str, data: bytes) -> str:
    if not data:
        raise UsageError(f"{source} is empty; give at least one character to continue from")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} must be UTF-8 text, but byte {error.start} is not") from error
