"""The stores there are: SQLite in a file or in memory, and etcd."""
