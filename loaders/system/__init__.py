"""What the operating system and C libraries give, and what of it needs care: memory, limits, signals, forks, files."""
