"""The form ``attnviz compare --corpus``: how differently the heads of two models attend, over many texts."""
