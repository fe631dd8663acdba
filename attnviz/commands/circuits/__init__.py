"""The command ``attnviz circuits``: what heads read of what earlier heads write, and what they copy; weights alone."""
