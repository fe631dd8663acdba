"""The command ``attnviz rollout``: attention followed through all layers."""

__all__: list[str] = []
