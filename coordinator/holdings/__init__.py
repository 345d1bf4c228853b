"""What engines hold in their caches, by their agents' word and by our own decisions."""
