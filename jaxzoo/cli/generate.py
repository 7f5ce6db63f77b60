"""`jaxzoo generate --run DIR --prompt TEXT`: continues prompts."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from jaxzoo.cli.flags import Repeated, StoredRunOptions, UsageError
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.cli.user_files import import_files
from jaxzoo.config.checked import FractionAboveZero, NonNegativeFloat, NonNegativeInt, PositiveInt, Seed
from jaxzoo.data.tokens.text_output import TextOutput, check_stops
from jaxzoo.utils.progress import show_progress

if TYPE_CHECKING:
    from jaxzoo.generation import Generation


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateCommand(StoredRunOptions):
    """Continues prompts with the language model of a run on text. The text goes to standard output as it is generated,
    everything else to standard error. Several prompts are continued as one batch and printed one after the other."""

    run: Path
    """Directory of the run, such as runs/lm-based_tiny."""
    prompt: Repeated = ()
    """Text to continue; repeat the flag for more texts. Write --prompt='-x' for one that begins with a dash."""
    prompt_file: Repeated = ()
    """File with a text to continue, to its last newline; - is standard input."""
    max_tokens: PositiveInt = 200
    """Largest number of new tokens per text."""
    temperature: NonNegativeFloat = 1.0
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: NonNegativeInt = 0
    """Draw only from so many likeliest tokens; 0: from all."""
    top_p: FractionAboveZero = 1.0
    """Draw only from the likeliest tokens that together have this probability; 1: from all."""
    seed: Seed = 0
    """Seed of the draws: equal seeds give equal texts."""
    stop: Repeated = ()
    """String that ends a text, and is left out of it; repeat the flag for more strings."""
    tokenizer: str = ""
    """The run's tokenizer, if it is not where the config says: bytes, a tokenizer.json, or a directory."""
    bos: Literal["auto", "yes", "no"] = "auto"
    """Begin-of-text tokens before each prompt: as in the tokenizer's template (auto), one, or none."""
    echo: bool = False
    """Print each prompt before its continuation."""

    def __post_init__(self) -> None:
        check_stops(self.stop)


@command_line(
    interrupted="\ninterrupted", out_of_memory="out of memory; give fewer prompts at once, or ask for fewer tokens"
)
def main(command: GenerateCommand) -> None:
    prompts = read_prompts(command)

    import jax

    from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
    from jaxzoo.generation import Generation, Sampling
    from jaxzoo.loading import load
    from jaxzoo.models.accounting import count_parameters

    import_files(command.config)
    prepare_jax()
    given = load_tokenizer(command.tokenizer, lossless=False) if command.tokenizer else None
    loaded = load(command.run, command.checkpoint or None, tokenizer=given, text=True)
    model = loaded.model
    tokenizer = loaded.tokenizer
    assert tokenizer
    tokenizer.choose_begin(command.bos)
    n = count_parameters(model)
    say(f"{command.run}: {n:,} parameters, checkpoint {loaded.step}, {jax.devices()[0].device_kind}")
    sampling = Sampling(
        temperature=command.temperature, top_k=command.top_k, top_p=command.top_p, n_ids=tokenizer.vocab_size
    )
    generation = Generation(
        model,
        [tokenizer.prompt(prompt) for prompt in prompts],
        max_tokens=command.max_tokens,
        sampling=sampling,
        seed=command.seed,
        stop_tokens=tokenizer.ends,
    )
    began = time.monotonic()
    with show_progress("prompt tokens") as report:
        n = generation.read(lambda n: report("read", n))
    say(f"read {n:,} prompt tokens in {time.monotonic() - began:.1f} s, compilation included")
    texts = [TextOutput(tokenizer, command.stop) for _ in prompts]
    _write(generation, texts, Printer(sys.stdout, prompts if command.echo else [""] * len(prompts)))


def read_prompts(command: GenerateCommand) -> list[str]:
    """Returns the texts of --prompt, then those of --prompt-file."""
    found = [(f"--prompt {text!r}", text.encode("utf-8", errors="surrogateescape")) for text in command.prompt]
    for name in command.prompt_file:
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).expanduser().read_bytes()
        except OSError as error:
            raise UsageError(f"--prompt-file {name} cannot be read: {error.strerror}") from error
        found.append((f"--prompt-file {name}", data))
    if not found:
        raise UsageError("nothing to continue: give --prompt TEXT, or --prompt-file FILE (- is standard input)")
    texts = []
    for source, data in found:
        try:
            texts.append(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise UsageError(f"{source} must be UTF-8 text, but byte {error.start} is not") from error
        if not data:
            raise UsageError(f"{source} is empty; give at least one character to continue from")
    return texts


def _write(generation: "Generation", texts: Sequence[TextOutput], printer: "Printer") -> None:
    """Prints tokens as they are generated, and stops rows whose text has ended."""
    counts = []
    times = [time.monotonic()]
    for block in generation:
        counts.append(sum(map(len, block)))
        times.append(time.monotonic())
        for row, (text, tokens) in enumerate(zip(texts, block, strict=True)):
            printer.write(row, text.push(tokens))
            if text.ended_by is not None:
                generation.stop(row)
            if generation.done[row]:
                printer.end(row, text.finish())
    rate = ""
    if len(counts) > 1:  # the first block includes compilation
        rate = f", {sum(counts[1:]) / (times[-1] - times[1]):,.0f} tokens/s after the first block"
    say(f"{sum(counts):,} new tokens{rate}")


class Printer:
    """Prints several texts in order: the first incomplete one as it grows, then the others.

    Each text ends with a newline. Several texts get a heading `==> prompt 1 <==` each.
    """

    def __init__(self, stream: TextIO, beginnings: Sequence[str]):
        self._stream = stream
        self._row = 0
        self._waiting = list(beginnings)
        if len(beginnings) > 1:
            self._waiting = [f"==> prompt {i} <==\n{text}" for i, text in enumerate(beginnings, 1)]
        self._ended = [False] * len(beginnings)
        self.write(0, "")

    def write(self, row: int, text: str) -> None:
        """Appends to the text of a row."""
        self._waiting[row] += text
        while self._row < len(self._waiting):
            self._stream.write(self._waiting[self._row])
            self._waiting[self._row] = ""
            if not self._ended[self._row]:
                break
            self._row += 1
            self._stream.write("\n" if self._row < len(self._waiting) else "")
        self._stream.flush()

    def end(self, row: int, text: str = "") -> None:
        """Appends the last part of a row; further calls change nothing."""
        last = "" if self._ended[row] else text + "\n"
        self._ended[row] = True
        self.write(row, last)
