"""Whether two runs are scored on the same validation tokens."""

import hashlib
from collections.abc import Mapping

import numpy as np

from jaxzoo.config.config_io import to_json
from jaxzoo.data.base import Dataset
from jaxzoo.train.session import Session


def check_same_tokens(sessions: Mapping[str, Session]) -> str:
    """Returns the `valid_digest` of some runs, by name.

    Raises:
        ValueError: the validation tokens of a run, or their cuts, differ from the first's; in which fields of its data.
    """
    (first, session), *others = sessions.items()
    digest = valid_digest(session.dataset)
    of_first = session.config.data
    for name, other in others:
        if valid_digest(other.dataset) == digest:
            continue
        data = other.config.data
        if type(data) is not type(of_first):
            differs = [f"data are {type(data).__name__} in {name}, {type(of_first).__name__} in {first}"]
        else:
            ours = to_json(data)
            theirs = to_json(of_first)
            keys = [key for key in ours if ours[key] != theirs[key]]
            differs = [f"data.{key} is {ours[key]!r} in {name}, {theirs[key]!r} in {first}" for key in keys]
        what = "; ".join(differs) or "their configs are the same, but the text has changed between the two readings"
        raise ValueError(f"{name} and {first} are not scored on the same validation tokens: {what}")
    return digest


def valid_digest(dataset: Dataset) -> str:
    """A hash of the rows of all validation sets, tokens, targets and segments, however they are cut into batches.

    Raises `ValueError`: there are sets of several lengths or positions, which score every target more than once.
    """
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
