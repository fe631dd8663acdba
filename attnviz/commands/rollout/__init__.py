"""The command ``attnviz rollout``: attention rollout and flow through all layers."""
