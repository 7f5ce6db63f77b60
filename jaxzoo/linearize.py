"""`python -m jaxzoo.linearize --run RUN --out RUN`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("linearize")
