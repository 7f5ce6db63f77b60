"""`python -m jaxzoo.data.tokenize --data data/pile --tokenizer gpt2 --out data/pile_gpt2`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":  # worker processes import this module again
    enter("data_tokenize")
