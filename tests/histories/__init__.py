"""Histories: programs of operations drawn by lot over one lake, compared with a model in plain Python after each."""
