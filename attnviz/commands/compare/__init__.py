"""The command ``attnviz compare``: how differently the heads attend on two sides."""
