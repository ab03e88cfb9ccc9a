"""Records into batches: what a dataset of packed columns can do, wherever its bytes lie."""
