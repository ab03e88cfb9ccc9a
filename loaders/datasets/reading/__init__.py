"""From the bytes of records to the tensors of a batch, a reader for each field."""
