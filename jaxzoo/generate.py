"""`python -m jaxzoo.generate --run DIR --prompt TEXT`; see `--help`."""

from jaxzoo.cli.generate import main

if __name__ == "__main__":
    raise SystemExit(main())
