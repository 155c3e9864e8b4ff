"""Places: where a lake, a table or a source lies, and the small files that the engine keeps there. No Spark here."""
