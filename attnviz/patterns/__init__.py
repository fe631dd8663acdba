"""What heads do: masks, statistics, relations, verdicts."""

__all__: list[str] = []
