"""`python -m sft_cli` is `sftune`."""

from __future__ import annotations

from sft_cli.cli.app import main

if __name__ == "__main__":
    main()
