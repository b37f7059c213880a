"""Data: rows from files and hubs, chats to tokens, lengths to batches, batches to steps."""
