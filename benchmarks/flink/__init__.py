"""Queries of Nexmark in PyFlink, to measure beside."""
