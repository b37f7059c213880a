"""What speaks an address's protocol, with its errors in plain words and an answer within seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sft_cli.errors import DataError
from sft_cli.plan.hub import within
from sft_cli.plan.hub_refusals import first_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

ANSWER_SECONDS = 15.0
"""For finding credentials and listing files. The packages retry on their own, for minutes where there is no network."""

_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "adl": "adlfs", "http": "aiohttp", "https": "aiohttp", "oss": "ossfs", "ssh": "paramiko", "sftp": "paramiko",
}  # fmt: skip

Answer = TypeVar("Answer")


def open_filesystem(address: str) -> tuple[AbstractFileSystem, str]:
    """What speaks the address's protocol, and its path there. Nothing is asked of the network yet.

    Raises:
        DataError: the protocol is not known, or its package is not installed.
    """
    from fsspec.core import url_to_fs

    protocol = address.partition("://")[0].lower()
    try:
        filesystem, path = url_to_fs(address)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        fix = f"pip install {package}" if package else f"{first_line(error)}."
        raise DataError(f"{protocol}:// needs a package that is not installed", where=address, fix=fix) from error
    except ValueError as error:
        raise DataError(
            f"the address can't be used: {first_line(error)}",
            where=address,
            fix=f"Among others there are {', '.join(f'{name}://' for name in ('s3', 'gs', 'az', 'hf', 'https'))}.",
        ) from error
    return filesystem, path


def answered(address: str, ask: Callable[[], Answer], seconds: float = ANSWER_SECONDS) -> Answer:
    """What `ask` returns.

    Raises:
        DataError: it raised, or has not returned in time.
    """
    try:
        return within(seconds, ask)
    except DataError:
        raise
    except TimeoutError as error:
        raise DataError(
            f"no answer within {seconds:g} seconds",
            where=address,
            fix="Check the network, or copy the files here and name their folder.",
        ) from error
    except FileNotFoundError as error:
        raise DataError("no such file or folder there", where=address, fix="Check the address.") from error
    except Exception as error:  # each package has exceptions of its own, for access as for the network
        raise unreadable(address, error) from error


def unreadable(address: str, error: Exception) -> DataError:
    """A user's error from whatever a package raised."""
    return DataError(
        f"can't be read: {first_line(error) or type(error).__name__}",
        where=address,
        fix="Check the address, your access to it (credentials in the environment) and the network.",
    )
