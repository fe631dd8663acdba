"""The command ``attnviz rollout``: attention followed through all layers."""
