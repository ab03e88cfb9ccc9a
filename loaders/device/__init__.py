"""Everything that runs where the model runs; plain PyTorch on a CPU."""
