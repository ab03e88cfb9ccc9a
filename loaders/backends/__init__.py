"""Ways of making the batches of an epoch: on the trainer's thread, on threads beside it, or in other processes."""
