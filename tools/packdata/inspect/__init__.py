"""Looking at packed datasets: what they hold, how they differ, and whether they are whole."""
