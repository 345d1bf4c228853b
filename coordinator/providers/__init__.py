"""Third parties that serve models: how each is asked, by which key, and when not."""
