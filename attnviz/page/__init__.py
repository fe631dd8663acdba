"""The interactive page: :mod:`attnviz.page.page` puts data, HTML, CSS and scripts into one file."""
