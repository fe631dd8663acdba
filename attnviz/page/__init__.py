"""The interactive page: one HTML file without network, filled from plain data by Python and drawn by ES modules.

``page.html``, ``page.css`` and the ``.js`` files stand here as they are edited; :mod:`attnviz.page.page` puts them
into one file with the data that it packs.
"""
