"""`python -m jaxzoo.generate --run DIR --prompt TEXT`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("generate")
