"""Spark's process: the session, Java, jars, the class-data archive and the Python daemon."""
