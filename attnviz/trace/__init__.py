"""Records named sites of a running model, in blocks of query rows, and verifies the recomputed attention."""
