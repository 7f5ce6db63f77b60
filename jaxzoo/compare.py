"""`python -m jaxzoo.compare RUN RUN ...`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("compare")
