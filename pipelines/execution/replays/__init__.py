"""Quarantined rows, run through the flow again after it was corrected (docs/adr/0024)."""
