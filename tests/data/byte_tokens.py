"""Token directories of bytes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxzoo.data.tokenizer import ByteTokenizer
from jaxzoo.data.tokens.token_shards import TokenDirectory, TokenizedDocument, shard_name, write_manifest, write_shard
from tests.data.shards import Documents


def write_byte_tokens(path: Path, shards: Sequence[Documents]) -> TokenDirectory:
    """A directory whose split "train" has these shards."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteTokenizer()
    for i, documents in enumerate(shards):
        rows = [TokenizedDocument(np.array(ids, np.uint16), len(ids), subset) for ids, subset in documents]
        write_shard(path, shard_name("train", i), rows, vocab_size=257, end_of_text=256)
    keys = ("name", "fingerprint", "vocab_size", "end_of_text")
    described = {key: getattr(tokenizer, key) for key in keys}
    write_manifest(path, {"train": len(shards)}, tokenizer=described, versions={})
    return TokenDirectory(path)
