"""From sample numbers to the bytes of their records: found, verified, copied, wherever the shards are."""
