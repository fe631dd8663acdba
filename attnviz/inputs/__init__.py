"""What the model reads: texts, pairs, chats, ids, sounds and files of them, as tokens and batches."""
