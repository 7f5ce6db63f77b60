"""`python -m jaxzoo.data.recall_statistics --data TOKENDIR --out DIR`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":  # a worker process imports its parent's main module
    enter("data_recall_statistics")
