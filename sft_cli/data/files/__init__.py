"""Rows from files, each with its place: one module a kind, compressed or not."""

from sft_cli.data.files.find import SUFFIXES, find_files
from sft_cli.data.files.read import read_file
from sft_cli.data.files.row_values import without_nulls

__all__ = ["SUFFIXES", "find_files", "read_file", "without_nulls"]
