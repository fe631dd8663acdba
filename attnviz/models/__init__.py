"""The command ``attnviz models``: what models there are, from their configurations alone.

config_files -> config_reading -> configurations -> listing -> document, tables
known_configurations: as papers print them; parameter_counts: from sizes
"""

__all__: list[str] = []
