"""The command ``attnviz outputs``: head outputs in the residual stream."""
