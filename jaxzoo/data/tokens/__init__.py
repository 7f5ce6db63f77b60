"""From documents to token shards, and from these to windows."""
