"""A Kubernetes cluster: its custom resources in force, its pods as engines."""
