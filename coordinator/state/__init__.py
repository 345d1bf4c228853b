"""What coordinators share: a store, leases and members, and the resources applied to it."""
