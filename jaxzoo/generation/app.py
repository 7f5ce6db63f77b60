"""`python -m jaxzoo.generate` from the first check to the last character, with its exit statuses.

0: done; 1: out of memory; 2: refused, or failed to read or write; 130: interrupted; 141: nobody reads the output
any more.
"""

import dataclasses
import os
import sys
import time
from collections.abc import Sequence

import jax

from jaxzoo.generation.cli import Command, parse_command, read_prompts
from jaxzoo.generation.output import Printer
from jaxzoo.generation.run import Generation
from jaxzoo.generation.text import TextOutput
from jaxzoo.generation.trained import Trained, load_trained
from jaxzoo.models.accounting import count_parameters
from jaxzoo.train.app import quieten, use_compilation_cache

REPORT_SECONDS = 2.0
"""Shortest time between two lines about the reading of long prompts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    quieten()
    try:
        command = parse_command(sys.argv[1:] if argv is None else argv)
        prompts = read_prompts(command)
        use_compilation_cache()
        _run(command, prompts, load_trained(command.run, command.checkpoint or None))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return 141
    except (ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print("error: out of memory; give fewer prompts at once, or ask for fewer tokens", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def _run(command: Command, prompts: Sequence[str], trained: Trained) -> None:
    model, tokenizer, step = trained
    device = jax.devices()[0].device_kind
    _say(f"{command.run}: {count_parameters(model):,} parameters, checkpoint {step}, {device}")
    generation = Generation(
        model,
        [tokenizer.encode(prompt) for prompt in prompts],
        max_tokens=command.max_tokens,
        sampling=dataclasses.replace(command.sampling, n_ids=tokenizer.vocab_size),
        seed=command.seed,
        stop_tokens=(tokenizer.end_of_text,),
    )
    _read(generation)
    texts = [TextOutput(tokenizer, command.stop) for _ in prompts]
    printer = Printer(sys.stdout, prompts if command.echo else [""] * len(prompts))
    _write(generation, texts, printer)


def _read(generation: Generation) -> None:
    """Reads the prompts, and says so where it takes a while."""
    total, began, said, first = int(generation.lengths.sum()), time.monotonic(), 0.0, 0

    def report(n_read: int) -> None:
        nonlocal said, first
        now = time.monotonic()
        if not first:
            said, first = now, n_read
        elif now - said > REPORT_SECONDS:
            said = now
            _say(f"read {n_read:,} of {total:,} prompt tokens")

    generation.read(report)
    _say(f"read {total:,} prompt tokens in {time.monotonic() - began:.1f} s, compilation included")


def _write(generation: Generation, texts: Sequence[TextOutput], printer: Printer) -> None:
    """Prints what comes, and stops the rows whose text has ended."""
    n_tokens, n_timed, began, seconds = 0, 0, time.monotonic(), 0.0
    for block in generation:
        seconds = time.monotonic() - began
        n_tokens, n_timed = n_tokens + sum(map(len, block)), n_timed + sum(map(len, block)) * bool(n_tokens)
        if not n_timed:
            began = time.monotonic()
        for row, (text, tokens) in enumerate(zip(texts, block, strict=True)):
            printer.write(row, text.push(tokens))
            if text.ended_by is not None:
                generation.stop(row)
            if generation.done[row]:
                printer.end(row, text.finish())
    rate = f", {n_timed / seconds:,.0f} tokens/s after the first block" if n_timed else ""
    _say(f"{n_tokens:,} new tokens{rate}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
