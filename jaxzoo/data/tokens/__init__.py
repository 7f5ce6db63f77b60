"""Token shards: made from documents, read as windows."""
