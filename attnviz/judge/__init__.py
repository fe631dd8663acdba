"""From numbers to labels of a text and roles over a corpus, by one table of rules."""
