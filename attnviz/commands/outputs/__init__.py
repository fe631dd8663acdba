"""The command ``attnviz outputs``: what each head adds to the residual stream."""
