"""Byte-level BPE (Sennrich et al. 2016; over bytes as GPT-2, Radford et al. 2019) learnt from documents."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxzoo.data.corpus.built import BuiltData
from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.library_tokenizer import LibraryTokenizer
from jaxzoo.utils.extras import need

SMALLEST = 257
"""Number of ids of the bytes and end-of-text."""
LEAST_COUNT = 2
"""Minimal number of occurrences of a merged pair."""
GOLDEN = (math.sqrt(5) - 1) / 2


class Learnt(NamedTuple):
    """Learned tokenizer, and the size of its training text."""

    tokenizer: LibraryTokenizer
    documents: int
    bytes: int


def learn_tokenizer(
    data: BuiltData, *, vocab_size: int, max_bytes: int, report: Callable[[int, bool], None] = lambda *_: None
) -> Learnt:
    """Learns byte-level BPE; deterministic for the same data, library and arguments.

    Id 0 is `<|endoftext|>`, the next 256 are the bytes, then come the merges in the order of learning. Documents are
    visited in steps of about the golden section of the split, modulo its size, so that any prefix covers all parts of
    the corpus. Fewer than `vocab_size` ids result if no pair is left that occurs twice. Reads text until `max_bytes`,
    which the last document may exceed. `report` receives the bytes read so far, and whether these are all.
    """
    need("tokenizers", "learning a tokenizer")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST:
        raise ValueError(f"vocab_size={vocab_size} must be at least {SMALLEST}: the bytes and end-of-text")
    if "train" not in data.splits:
        raise ValueError(f"{data.path} has no split 'train'; it has {', '.join(data.splits)}")
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_COUNT,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT],
    )
    n = sum(data.splits["train"])
    step = next(step for step in itertools.count(max(round(n * GOLDEN), 1)) if math.gcd(step, n) == 1)
    n_documents = n_bytes = 0

    def sample() -> Iterator[str]:
        nonlocal n_documents, n_bytes
        for document in data.read("train", (i * step % n for i in range(n))):
            if n_bytes >= max_bytes:
                break
            n_documents, n_bytes = n_documents + 1, n_bytes + len(document.text.encode())
            report(n_bytes, False)
            yield document.text
        report(n_bytes, True)

    library.train_from_iterator(sample(), trainer)
    learnt = LibraryTokenizer(json.loads(library.to_str()), END_OF_TEXT, "the tokenizer that was learnt")
    return Learnt(learnt, n_documents, n_bytes)
