"""`python -m jaxzoo.classify --run DIR --data FOLDER --run-dir OUT`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("classify")
