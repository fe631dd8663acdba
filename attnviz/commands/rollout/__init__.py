"""The command ``attnviz rollout``: attention rollout through all layers."""
