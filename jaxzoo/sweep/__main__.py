"""`python -m jaxzoo.sweep --experiment FILE`; see `--help`."""

from jaxzoo.cli.door import enter

enter("sweep")
