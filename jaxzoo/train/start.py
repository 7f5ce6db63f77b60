"""Start of training: at step 0, or at the newest checkpoint that can be used."""

import dataclasses

from jaxzoo.config.config_io import to_json
from jaxzoo.data.base import Stream
from jaxzoo.models.blueprint import Variables
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.config import ExperimentConfig
from jaxzoo.train.session import Session
from jaxzoo.train.state import TrainState


@dataclasses.dataclass
class ResumePoint:
    """State and stream with which training begins."""

    state: TrainState
    """The state, which training donates."""
    stream: Stream
    """Training batches from there on."""
    step: int = 0
    """Updates that `state` has seen."""
    n_rows: int = 0
    """Rows of metrics up to `step`, when it was saved."""
    is_given: bool = False
    """Whether `state` holds the parameters of another run: it is saved before the first update."""


def begin(
    session: Session,
    checkpoints: Checkpoints | None,
    config: ExperimentConfig | None = None,
    variables: Variables | None = None,
) -> ResumePoint:
    """The start of a new run, or of one that goes on from the newest checkpoint that can be used.

    Args:
      session: of the run, or of one that differs in learning rate and seed alone.
      checkpoints: those of the run; None: it is new.
      config: the run's; None: the session's.
      variables: what a new run begins with, donated; None: random ones.

    Raises:
      ValueError: the checkpoint's cursor belongs to other data.
      UnusableError: there are checkpoints, or were, and none can be used.
    """
    config = config or session.config
    stream = session.stream()
    found = checkpoints.restore_newest(session.abstract_state, to_json(config)) if checkpoints else None
    if found is None:
        return ResumePoint(session.init_state(config.train.seed, variables), stream, is_given=variables is not None)
    state, seal = found
    try:
        stream.set_state(seal.cursor)
    except (LookupError, TypeError) as error:
        raise ValueError(f"checkpoint {seal.step}: its cursor is not one of these data: {error!r}") from error
    return ResumePoint(state, stream, seal.step, seal.n_rows)
