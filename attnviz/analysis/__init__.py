"""What :func:`attnviz.analyze` found in a text, head by head, for the commands that show or compare it."""
