"""The node agent: reads engines and GPUs of one node, streams digests to coordinators."""
