"""Many texts: reading and parsing files, batches through a model, runs that resume and share work."""
