"""A simulated vLLM engine with real wire formats, and workloads for it."""
