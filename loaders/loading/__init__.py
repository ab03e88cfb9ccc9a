"""The ``DataLoader``: its options, its order, what it hands over, and where it goes on."""
