"""`tridelta`, the command line."""
