"""The commands: one folder each, with measure, views, report."""
