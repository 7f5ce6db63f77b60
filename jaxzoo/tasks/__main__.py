"""`python -m jaxzoo.tasks --task mqar --show 3`; see `--help`."""

from jaxzoo.cli.tasks import main

raise SystemExit(main())
