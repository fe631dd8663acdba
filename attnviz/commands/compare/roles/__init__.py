"""The form ``attnviz compare --corpus`` for models of different shapes: the best head of each for every role."""
