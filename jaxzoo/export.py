"""`python -m jaxzoo.export --run DIR --out FILE.safetensors`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("export")
