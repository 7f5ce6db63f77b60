"""`python -m jaxzoo.tasks --task mqar --show 3`; see `--help`."""

from jaxzoo.cli.door import enter

enter("tasks")
