"""`check_mixer`: the contract of `jaxzoo.mixers.base`, asked of a mixer as far as its capabilities promise.

For the tests of your own mixer, wherever it is defined:

    from jaxzoo.testing import check_mixer

    def test_my_mixer():
        check_mixer(MyMixerConfig.tiny())

The truth is `step`, token by token, the simplest of the three forms; check it against your equation by a test of your
own. Few programs are compiled for a mixer, and their results are cached: `streams` runs `step` and `prefill`,
`training` the call and the gradients. Each `check_*` function reads them and raises AssertionError for one invariant.

`check_task` does the same for a task; see `jaxzoo.tasks.contract`.
"""

from jaxzoo.mixers.base import MixerConfig
from jaxzoo.tasks.contract import check_task
from jaxzoo.testing.mixer_gradients import check_call, check_gradients
from jaxzoo.testing.mixer_inputs import build, ready
from jaxzoo.testing.mixer_streams import check_streams, check_values, streams
from jaxzoo.testing.mixer_training import check_dependence, check_documents, check_dtypes, check_parameters, training

__all__ = ["check_mixer", "check_task"]


def check_mixer(config: MixerConfig) -> None:
    """Checks all that a mixer promises, with weights of standard deviation 0.5 so that wrong mixing shows.

    Args:
      config: a small one, such as `tiny()`: widths of some 16 at most.

    Raises:
      AssertionError: an invariant does not hold; the message names it.
      ValueError: what the mixer itself refuses.
    """
    for results in (build, streams, training):  # those of a class that a notebook has defined once more
        results.cache_clear()
    config = ready(config)
    promised = config.capabilities
    check_parameters(config)
    check_dependence(config)
    check_dtypes(config)
    if promised.streams:
        check_streams(config)
        check_call(config)
        check_gradients(config)
    if promised.streams and promised.makes_values:
        check_values(config)
    if promised.segments:
        check_documents(config)
