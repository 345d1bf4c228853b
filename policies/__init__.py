"""Inference policies: what may serve a request, and in which order."""
