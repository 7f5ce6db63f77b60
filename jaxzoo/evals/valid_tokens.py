"""Check that runs are scored on the same validation tokens."""

import hashlib
from collections.abc import Mapping

import numpy as np

from jaxzoo.config.config_io import first_difference, to_json
from jaxzoo.data.base import Dataset
from jaxzoo.train.session import Session


def check_same_tokens(sessions: Mapping[str, Session]) -> str:
    """Returns the `valid_digest` of runs, by name. Raises `ValueError` if the validation tokens of a run, or their
    cuts, differ from the first's; names the field of its data."""
    (first, session), *others = sessions.items()
    digest = valid_digest(session.dataset)
    for name, other in others:
        if valid_digest(other.dataset) == digest:
            continue
        configs = [to_json(each.config)["data"] for each in (session, other)]
        found = first_difference(*configs, path="data")
        what = "the text changed between reading the two runs"
        if found:
            field, of_first, of_other = found
            what = f"{field} is {of_other!r} in {name}, {of_first!r} in {first}"
        raise ValueError(f"{name} and {first} are not scored on the same validation tokens: {what}")
    return digest


def valid_digest(dataset: Dataset) -> str:
    """Returns a hash of the rows of all validation sets (tokens, targets, segments), independent of batching. Raises
    `ValueError` for sets of several lengths or positions, which score every target more than once."""
    sets = dataset.valid()
    for key in ("length", "position"):
        values = sorted({s.slices[key] for s in sets if key in s.slices})
        if len(values) > 1:
            raise ValueError(
                f"the validation sets of several {key}s, {', '.join(map(str, values))}, score every token more than "
                f"once; take one, such as --data.valid-{key}s {values[0]}"
            )
    digest = hashlib.sha256()
    for valid_set in sets:
        for i in range(valid_set.n_batches):
            batch = valid_set.batch(i)
            fields = (batch.tokens, batch.targets, *(() if batch.segment_ids is None else (batch.segment_ids,)))
            for row in zip(*(np.asarray(field) for field in fields), strict=True):
                digest.update(repr([part.shape for part in row]).encode())
                for part in row:
                    digest.update(part.tobytes())
    return digest.hexdigest()
