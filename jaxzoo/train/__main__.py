"""`python -m jaxzoo.train --config FILE`; see `--help`."""

from jaxzoo.train.app import main

raise SystemExit(main())
