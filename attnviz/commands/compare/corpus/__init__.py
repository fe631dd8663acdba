"""The form ``attnviz compare --corpus``: differences of all heads of two models over many texts."""
