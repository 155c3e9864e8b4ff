"""The assignment planner: supervisors, flows and old assignments in, assignments out. No database here."""
