"""`check_mixer`: tests that a mixer satisfies the contract of `jaxzoo.mixers.base`, as far as its capabilities promise.

Use it in the tests of your own mixer:

    from jaxzoo.testing import check_mixer

    def test_my_mixer():
        check_mixer(MyMixerConfig.tiny())

The reference is `step`, token by token; compare it with your equation in a separate test. Few programs are compiled per
mixer, and their results are cached: `streams` runs `step` and `prefill`, `training` the call and the gradients. Each
`check_*` function tests one invariant of these results and raises AssertionError.

`check_task` does the same for a task; see `jaxzoo.tasks.contract`.
"""

from jaxzoo.mixers.base import MixerConfig
from jaxzoo.tasks.contract import check_task
from jaxzoo.testing.mixer_gradients import check_call, check_gradients
from jaxzoo.testing.mixer_inputs import build, ready
from jaxzoo.testing.mixer_streams import check_streams, check_values, streams
from jaxzoo.testing.mixer_training import check_dependence, check_documents, check_dtypes, check_parameters, training

__all__ = ["check_mixer", "check_task"]


_RULES = {
    check_parameters: (
        "outputs must be finite, and so must the gradient of every parameter, which must not be zero",
        "a parameter that no output reads, or one that only a constant multiplies",
    ),
    check_dependence: (
        "outputs must depend on earlier tokens and on no later one",
        "a shift by one, a mask of the wrong side, or a mixer that should promise Capabilities(causal=False)",
    ),
    check_dtypes: ("the output must have the dtype of the input", "a float32 parameter used without a cast to x.dtype"),
    check_streams: (
        "prefill of any number of tokens from any state must equal as many steps",
        "a chunk that drops the state before it, or a state that misses the last tokens",
    ),
    check_call: (
        "the call must equal the steps from init_state",
        "a first token, or a padding, treated in one form only",
    ),
    check_gradients: (
        "gradients of the call must equal those of prefill and of steps",
        "a custom VJP, or a stop_gradient that stands in one form only",
    ),
    check_values: ("`values` must be the same in all forms", "values that are taken after the state is updated"),
    check_documents: (
        "packed documents must give what each document gives alone",
        "a state, a convolution or positions that do not begin again where a document begins",
    ),
}
"""Mapping from checks to the rule and the usual cause of a failure."""


def check_mixer(config: MixerConfig) -> None:
    """Checks every promise of a mixer, with weights of standard deviation 0.5 so that wrong mixing is visible.

    Args:
      config: a small config, such as `tiny()`, with widths of about 16 at most.

    Raises:
      AssertionError: an invariant does not hold; the message names it and the usual cause.
      ValueError: raised by the mixer itself.
    """
    for results in (build, streams, training):  # a notebook may have redefined the class
        results.cache_clear()
    config = ready(config)
    promised = config.capabilities
    asked = {
        check_streams: promised.streams,
        check_call: promised.streams,
        check_gradients: promised.streams,
        check_values: promised.streams and promised.makes_values,
        check_documents: promised.segments,
    }
    for check, (rule, cause) in _RULES.items():
        if not asked.get(check, True):
            continue
        try:
            check(config)
        except AssertionError as error:
            name = type(config).__name__.removesuffix("Config")
            raise AssertionError(f"{name}: {rule}; the usual cause is {cause}. {error}") from error
