"""The ways in: HTTP for clients, gRPC and JSON for gateways, Envoy, the admin listener."""
