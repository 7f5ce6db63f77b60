"""Training: `jaxzoo train --config FILE`."""
