"""The coordinator: index, cluster state, decision, doors, admin."""
