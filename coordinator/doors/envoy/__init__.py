"""The door for Envoy and for gateways that speak its external processing (ext_proc)."""
