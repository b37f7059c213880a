"""Rows read while training: mixed, ordered in windows and dealt to ranks as they come, nothing kept on disk."""
