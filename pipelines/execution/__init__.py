"""Running plans: the batch tracker, the streaming runner, the bounded runner."""
