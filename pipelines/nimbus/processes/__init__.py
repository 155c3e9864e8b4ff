"""The processes of a deployment: the supervisor, which may lead, and its workers with their tasks."""
