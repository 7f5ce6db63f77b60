"""`jaxzoo data-train-tokenizer`: learns byte-level BPE from documents."""

import dataclasses
import time
from pathlib import Path

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import command_line, say
from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.utils.progress import show_progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTokenizerCommand(Checked):
    """Learns byte-level BPE from documents that jaxzoo data-build has made.

    Writes tokenizer.json and tokenizer_config.json, which jaxzoo data-tokenize takes; the same data give the
    same bytes.
    """

    data: Path
    """Directory of the documents; its split train is used."""
    out: Path
    """Directory of the tokenizer, or a file named tokenizer.json in it."""
    vocab_size: PositiveInt = 4096
    """Number of ids: end-of-text, 256 bytes, and merges of them."""
    max_bytes: PositiveInt = 100_000_000
    """Bytes of text to learn from, in evenly spaced documents; memory is a few times that."""
    overwrite: bool = False
    """Replace an existing tokenizer."""


@command_line(interrupted="interrupted; nothing was written", out_of_memory="out of memory; take fewer --max-bytes")
def main(command: TrainTokenizerCommand) -> None:
    out = command.out.expanduser()
    out = out.parent if out.name == "tokenizer.json" else out
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {command.out} must be a directory, or end in tokenizer.json")
    if any((out / name).exists() for name in ("request.json", "manifest.json")):
        raise UsageError(f"--out {out} holds token shards, whose tokenizer must not change; choose another place")
    found = [name for name in ("tokenizer.json", "tokenizer_config.json") if (out / name).exists()]
    if found and not command.overwrite:
        raise UsageError(f"--out {out} holds {found[0]}; replace it with --overwrite, or choose another place")

    from jaxzoo.data.corpus.built import BuiltData
    from jaxzoo.data.tokens.tokenizer_files import save_tokenizer
    from jaxzoo.data.tokens.tokenizer_training import learn_tokenizer

    data = BuiltData(command.data.expanduser())
    began = time.monotonic()
    with show_progress("bytes") as show:

        def report(n_bytes: int, is_all: bool) -> None:
            show("read", n_bytes)
            if is_all:
                say(f"read {n_bytes:,} bytes; merging to {command.vocab_size:,} ids")

        learnt = learn_tokenizer(data, vocab_size=command.vocab_size, max_bytes=command.max_bytes, report=report)
    out.mkdir(parents=True, exist_ok=True)
    save_tokenizer(learnt.tokenizer, out)
    seconds = time.monotonic() - began
    print(
        f"{out / 'tokenizer.json'}: {learnt.tokenizer.fingerprint}, {learnt.tokenizer.vocab_size:,} ids learnt "
        f"from {learnt.documents:,} documents, {learnt.bytes:,} bytes, in {seconds:,.1f} s"
    )
    if learnt.tokenizer.vocab_size < command.vocab_size:
        say(
            f"warning: --vocab-size {command.vocab_size} was not reached: no pair of tokens occurs twice any more; "
            "give more text"
        )
