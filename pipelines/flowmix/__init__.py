"""Event flows: named streams of event operations."""
