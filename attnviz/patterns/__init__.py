"""What heads do: masks, statistics, relations, verdicts."""
