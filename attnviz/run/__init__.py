"""Records named sites of a running model, in chunks of query rows, and verifies the recomputed attention."""
