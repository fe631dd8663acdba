"""The command ``attnviz card``: one head on one page, everything that was measured of it."""
