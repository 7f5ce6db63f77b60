"""`python -m jaxzoo.convert --from DIR --out RUN`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("convert")
