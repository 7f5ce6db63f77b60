"""Token directories written from lists."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxzoo.data.tokenizer import ByteTokenizer, DNATokenizer
from jaxzoo.data.tokens.token_shards import TokenDirectory, TokenizedDocument, shard_name, write_manifest, write_shard

Documents = Sequence[tuple[Sequence[int], str]]
"""Token ids, without end-of-text, and the subset of each document."""

BYTES, DNA = (
    {key: getattr(kind, key) for key in ("name", "fingerprint", "vocab_size", "end_of_text")}
    for kind in (ByteTokenizer, DNATokenizer)
)


def write_tokens(
    path: Path,
    splits: Mapping[str, Sequence[Documents]],
    *,
    vocab_size: int = 257,
    end_of_text: int | None = None,
    tokenizer: Mapping | None = None,
) -> TokenDirectory:
    """Writes a token directory of splits, each a list of shards.

    Args:
      path: the directory, made where it is missing.
      splits: `{"train": [[([1, 2], "a"), ([3], "b")], ...]}`.
      vocab_size: ids are below.
      end_of_text: id after every document; None: the last one.
      tokenizer: its identity, with vocabulary and end-of-text; None: one that exists in name only.
    """
    path.mkdir(parents=True, exist_ok=True)
    end = vocab_size - 1 if end_of_text is None else end_of_text
    named = {"name": "test", "fingerprint": f"test-{vocab_size}", "vocab_size": vocab_size, "end_of_text": end}
    tokenizer = dict(tokenizer or named)
    ids = {key: tokenizer[key] for key in ("vocab_size", "end_of_text")}
    for split, shards in splits.items():
        for i, documents in enumerate(shards):
            rows = [TokenizedDocument(np.array(ids_, np.int64), 2 * len(ids_), subset) for ids_, subset in documents]
            write_shard(path, shard_name(split, i), rows, **ids)
    write_manifest(path, {split: len(shards) for split, shards in splits.items()}, tokenizer=tokenizer, versions={})
    return TokenDirectory(path)


def random_documents(rng: np.random.Generator, n: int, *, n_ids: int, longest: int, subsets: str = "ab") -> Documents:
    """Documents of 0 to `longest` tokens, ids below `n_ids`."""
    lengths = rng.integers(0, longest + 1, n)
    return [(rng.integers(0, n_ids, length).tolist(), str(rng.choice(list(subsets)))) for length in lengths]
