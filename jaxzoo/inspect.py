"""`python -m jaxzoo.inspect --run DIR`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("inspect")
