"""jaxzoo: sequence mixers beyond attention, and the recall tasks that tell them apart."""
