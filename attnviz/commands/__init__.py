"""One folder a command: measure, views, report."""

__all__: list[str] = []
