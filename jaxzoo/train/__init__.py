"""Training: `python -m jaxzoo.train --config FILE`."""
