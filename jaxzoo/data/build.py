"""`python -m jaxzoo.data.build --source pile --paths 'pile/train/*.jsonl.zst' --out data/pile`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":  # worker processes import this module again
    enter("data_build")
