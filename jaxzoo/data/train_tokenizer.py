"""`python -m jaxzoo.data.train_tokenizer --data data/pile --vocab-size 4096 --out data/bpe4096`; see `--help`."""

from jaxzoo.cli.door import enter

if __name__ == "__main__":
    enter("data_train_tokenizer")
