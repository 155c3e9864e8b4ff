"""The registry of deployed flows: its database, records, leases, assignments and beats."""
