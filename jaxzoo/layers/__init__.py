"""Building blocks that mixers and models share."""
