"""What can go wrong while rows of a hub data set are fetched, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sft_cli.errors import DataError
from sft_cli.plan import hub
from sft_cli.plan.hub_refusals import failed_download, first_line, hub_errors


@contextmanager
def fetching(repo: hub.Repo) -> Iterator[None]:
    """Raises DataError for what `datasets` or the hub raises inside."""
    import datasets

    try:
        yield
    except datasets.exceptions.DatasetsError as error:
        raise DataError(
            f"the data set can't be read: {first_line(error.__cause__ or error)}",
            where=repo.where,
            fix="See its page on the hub; its files may not fit each other.",
        ) from error
    except hub_errors() as error:
        raise failed_download(error, repo.kind, repo.id, repo.revision, repo.where) from error
