"""What every command does with what it measured: tables, documents, figures on disk."""
