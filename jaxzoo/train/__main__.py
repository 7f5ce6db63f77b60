"""`python -m jaxzoo.train --config FILE`; see `--help`."""

from jaxzoo.cli.door import enter

enter("train")
