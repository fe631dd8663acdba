"""The command ``attnviz outputs``: what each head adds to the residual stream.

contributions, residual_stream -> promoted_tokens -> measure -> report -> views
"""
