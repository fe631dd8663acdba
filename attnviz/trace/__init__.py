"""One recorder of named sites of a running model, in blocks of rows, and what verifies them."""
