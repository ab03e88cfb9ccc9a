"""Windows over a stream of tokens, and over its documents."""
