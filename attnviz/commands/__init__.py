"""One folder a command: measure, views, report."""
