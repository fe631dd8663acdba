"""The command ``attnviz models``: what models there are, from their configurations alone.

configurations, parameter_counts -> known_configurations (as papers print them)
  -> config_files -> config_reading -> listing
  -> document, tables
"""

__all__: list[str] = []
