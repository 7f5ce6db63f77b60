"""The model is within its stated error of what others measured."""

import jax
import pytest

from pallas_kernels.compile_check.run import check_module
from pallas_kernels.schedule_model import calibrate
from tests.pallas_kernels.aot import needs


def test_what_was_measured_is_modelled():
    """Kills a published rate of a workload that is gone or renamed."""
    names = {workload.name for group in calibrate.GROUPS.values() for workload in group}
    assert {name for name, _ in calibrate.PUBLISHED} <= names


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="JAX's kernels of the calibration are those of jax 0.12")
@pytest.mark.parametrize(("group", "target", "least", "most"), [("gpu", "h100", 1.1, 1.4), ("tpu", "v5e", 1.0, 1.25)])
def test_measured_against_predicted(group, target, least, most):
    """Kills a model that is off by more than it says, or that flatters."""
    needs(target)
    compared = 0
    for report in check_module(calibrate.__name__, group, targets=[target], model=True):
        assert report.error is None
        known = calibrate.PUBLISHED.get((report.shape, target))
        if known is not None:
            assert least < known.microseconds / sum(call.total for call in report.calls) < most
            compared += 1
    assert compared >= 3
