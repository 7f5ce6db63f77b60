"""`python -m jaxzoo.tasks.records --out DIR`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("tasks_records")
