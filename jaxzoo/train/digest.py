"""Digests of the arrays of a model; see `jaxzoo.utils.checksums`."""

from jaxzoo.utils.checksums import (
    ArrayDigest as ArrayDigest,
    Digests as Digests,
    digests as digests,
    variables_digest as variables_digest,
)
