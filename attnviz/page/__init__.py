"""The interactive page: one HTML file without network; Python fills in the data, ES modules draw.

``page.html``, ``page.css`` and the ``.js`` files stand here as they are edited; :mod:`attnviz.page.page` puts them
into one file with the data that it packs.
"""
