"""Labels of heads in a text and roles over a corpus, by one table of rules."""
