"""`python -m jaxzoo.data.demo_pile --out data/demo_pile`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("data_demo_pile")
