"""`python -m jaxzoo.train --config FILE`; see `--help`."""

from jaxzoo.cli.train import main

raise SystemExit(main())
