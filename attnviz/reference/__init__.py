"""The mathematics of attention: torch alone, nothing above it."""
