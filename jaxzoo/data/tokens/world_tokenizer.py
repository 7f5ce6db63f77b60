"""Tokenizer of RWKV's World models: the longest token at each byte of the text (greedy, without merges).

A line of its vocabulary is an id, a Python literal (text, or bytes) and the number of bytes: `259 ' a' 2`.
"""

import ast
import collections
import hashlib

import numpy as np
from jaxtyping import UInt16

from jaxzoo.data.tokenizer import Tokenizer


class WorldTokenizer(Tokenizer):
    """Tokenizer of a vocabulary file; id 0 ends a document. Raises `ValueError` for a malformed line, or a byte without
    token."""

    name = "rwkv-world"
    end_of_text = 0

    def __init__(self, text: str, where: str):
        tokens: dict[bytes, int] = {}
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            first, _, rest = line.partition(" ")
            literal, _, size = rest.rpartition(" ")
            try:
                value = ast.literal_eval(literal)
                token = value.encode() if isinstance(value, str) else bytes(value)
                tokens[token] = int(first)
                is_whole = len(token) == int(size) and 0 <= tokens[token] < 2**16
            except (ValueError, SyntaxError, TypeError):
                is_whole = False
            if not is_whole:
                raise ValueError(f"{where}:{number}: must be an id below 65,536, a literal, and its length")
        if lacking := {bytes([byte]) for byte in range(256)} - tokens.keys():
            raise ValueError(f"{where} must have a token for every byte, but lacks 0x{min(lacking).hex().upper()}")
        self.text: str = text
        self.vocab_size: int = max(tokens.values()) + 1
        digest = hashlib.sha256(repr(sorted(tokens.items())).encode()).hexdigest()
        self.fingerprint: str = f"world-{self.vocab_size}-{digest[:12]}"
        self._ids = tokens
        self._lengths_of: dict[bytes, list[int]] = collections.defaultdict(list)
        for token in sorted(tokens, key=len, reverse=True):
            if len(token) not in self._lengths_of[token[:2]]:
                self._lengths_of[token[:2]].append(len(token))
        table = [b""] * self.vocab_size
        for token, i in tokens.items():
            table[i] = token
        super().__init__(table)

    def encode(self, text: str) -> UInt16[np.ndarray, "t"]:
        data = text.encode()
        ids, at = [], 0
        while at < len(data):
            lengths = [*self._lengths_of.get(data[at : at + 2], ()), 1]
            n = next(n for n in lengths if data[at : at + n] in self._ids)
            ids.append(self._ids[data[at : at + n]])
            at += n
        return np.array(ids, np.uint16)
