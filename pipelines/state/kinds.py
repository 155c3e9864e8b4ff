"""The names of what a state can be: its layout, and what a replayed batch does to it."""

LOG, MAP, ROWS = LAYOUTS = ("log", "map", "rows")
TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL = KINDS = ("transactional", "opaque", "non_transactional")
