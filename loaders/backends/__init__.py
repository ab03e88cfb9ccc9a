"""Ways of making the batches of an epoch: on the trainer's thread, or on threads beside it."""
