"""`python -m jaxzoo.plan --config FILE --topology NAME`; see `--help`."""

from jaxzoo.cli.door import enter

enter("plan")
