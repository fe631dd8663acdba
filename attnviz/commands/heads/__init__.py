"""The command ``attnviz heads``."""
