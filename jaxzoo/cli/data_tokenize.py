"""`jaxzoo data-tokenize`: makes token shards of documents."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import GOES_ON, command_line
from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.utils.progress import show_progress

if TYPE_CHECKING:
    from jaxzoo.data.tokens.token_shards import TokenDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizeCommand(Checked):
    """Makes token shards of all splits of the documents that jaxzoo data-build has made.

    The same command continues work that was stopped or killed. Several of these commands, on machines that share the
    directory, share the work.
    """

    data: Path
    """Directory of the documents."""
    tokenizer: str
    """bytes; dna (bases); a tokenizer.json; or a directory with one, or with GPT-2's encoder.json and vocab.bpe (or
    vocab.json and merges.txt)."""
    out: Path
    """Directory of the token shards."""
    end_of_text: str = ""
    """Token that ends a document; default: eos_token of a tokenizer_config.json, else <|endoftext|>, </s> and the
    like."""
    workers: PositiveInt = 1
    """Processes; the output does not depend on their number."""


@command_line(interrupted=GOES_ON, out_of_memory="out of memory; take fewer --workers")
def main(command: TokenizeCommand) -> None:
    from jaxzoo.data.tokens.tokenization import Tokenization
    from jaxzoo.data.tokens.tokenizer_files import load_tokenizer

    try:
        tokenizer = load_tokenizer(command.tokenizer, command.end_of_text or None)
    except (ValueError, OSError) as error:
        raise UsageError(f"--tokenizer {command.tokenizer}: {error}") from error
    work = Tokenization(command.data.expanduser(), tokenizer, command.out.expanduser())
    if work.is_finished:
        print(f"{command.out}: is finished already")
        return
    began = time.monotonic()
    before = work.progress().tokens

    def progress() -> tuple[str, int, int]:
        done = work.progress()
        rate = (done.tokens - before) / (time.monotonic() - began)
        return f"{done.tokens:,} tokens, {rate:,.0f} tokens/s", done.shards, work.n_shards

    with show_progress("shards", progress):
        directory = work.run(workers=command.workers)
    print(f"{command.out}: {directory.fingerprint}, in {time.monotonic() - began:,.1f} s")
    _tell(directory)


def _tell(directory: "TokenDirectory") -> None:
    for name, split in directory.splits.items():
        all_ = split.total
        ratio = all_.bytes / max(all_.tokens - all_.documents, 1)
        counts = f"{all_.documents:,} documents, {all_.tokens:,} tokens, {all_.bytes:,} bytes"
        print(f"  {name}: {counts}, {ratio:.2f} bytes per token")
        for subset, each in split.subsets.items():
            if subset:
                print(f"    {subset}: {each.documents:,} documents, {each.tokens:,} tokens, {each.bytes:,} bytes")
        empty = sum(note.empty for note in split.shards.values())
        repaired = sum(note.repaired for note in split.shards.values())
        if empty:
            print(f"    {empty:,} of its documents are empty: an end-of-text alone")
        if repaired:
            print(f"    {repaired:,} of its documents are not UTF-8: U+FFFD replaces invalid bytes")
