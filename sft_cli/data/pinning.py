"""Data sets elsewhere pinned to what they are now, so that every process of a run reads the same rows.

A hub data set to the commit that its branch means; files behind an address to what stands for their versions. Also what
makes the cache of tokenised rows honest: a commit never changes, a branch does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sft_cli.data.hub_copies import prepared_commits
from sft_cli.data.remote.listing import Listing, ask_for_listing, note_listing, noted_listing
from sft_cli.data.sources import is_hub
from sft_cli.errors import DataError
from sft_cli.plan import hub
from sft_cli.plan.hub_refusals import not_at_hand
from sft_cli.plan.plan import Choice, Plan
from sft_cli.recipe.paths import is_address
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import SourceSection


def pin_sources(plan: Plan, places: Places | None = None, *, progress: bool, ask_hub: bool = True) -> Plan:
    """The plan with a `revision` of every data set that is not on this machine, and the reason among its choices.

    Each hub data set is looked up once; where the hub can't be reached, the copy in the local cache counts. Files
    behind an address are listed.

    Args:
        places: where the recipe's keys stand, for errors.
        progress: say on stderr where a cached copy is read because the hub gives no answer.
        ask_hub: False takes the local cache's word for everything, and asks no network.

    Raises:
        DataError: no such data set, revision or file, no access to it, or it can't be reached and no copy is here.
        CheckpointError: the cache can't be written.
    """
    pins = _Pins(progress=progress, ask_hub=ask_hub)
    data, choices = plan.recipe.data, list(plan.choices)
    parts: dict[str, tuple[SourceSection, ...]] = {}
    for part, sources in (("train", data.train), ("eval", data.eval)):
        pinned = []
        for index, source in enumerate(sources):
            if is_hub(source) and not hub.is_commit(source.revision):
                key = f"data.{part}.{index}"
                where = places.of(f"{key}.path") if places else source.path
                repo = hub.Repo("dataset", source.path, source.revision, where)
                commit, because = pins.of(repo, source.subset)
                source = source.model_copy(update={"revision": commit})
                choices.append(Choice(key=f"{key}.revision", value=commit, because=because))
            elif is_address(source.path) and source.revision is None:
                listing, because = _listing(source.path, Path(data.cache_dir).expanduser(), ask=ask_hub)
                source = source.model_copy(update={"revision": listing.digest})
                choices.append(Choice(key=f"data.{part}.{index}.revision", value=listing.digest, because=because))
            pinned.append(source)
        parts[part] = tuple(pinned)
    recipe = plan.recipe.model_copy(update={"data": data.model_copy(update=parts)})
    return plan.model_copy(update={"recipe": recipe, "choices": tuple(choices)})


def note_pins(plan: Plan, pinned: Plan) -> None:
    """Writes down what the branches and tags of a plan stood for, so that its rows are found without a network.

    Once they have been read: a note of rows that could not be downloaded would hide an older copy.

    Args:
        plan: as it was given to `pin_sources`.
        pinned: what that returned.
    """
    for given, found in zip(_sources(plan), _sources(pinned), strict=True):
        if is_hub(given) and given.revision != found.revision and found.revision is not None:
            hub.note_commit(hub.Repo("dataset", given.path, given.revision, given.path), found.revision)


def _listing(address: str, cache_dir: Path, *, ask: bool) -> tuple[Listing, str]:
    """The files behind an address, and why these."""
    if ask:
        listing = ask_for_listing(address)
        note_listing(cache_dir, address, listing)
        return listing, f"the {listing.summary} that are there now"
    noted = noted_listing(cache_dir, address)
    if noted is None:
        raise DataError("not looked at yet, and a plan asks no network", where=address, fix="`sftune train` does.")
    return noted, f"the {noted.summary} that were there when it was last asked: a plan asks no network"


def _sources(plan: Plan) -> tuple[SourceSection, ...]:
    return (*plan.recipe.data.train, *plan.recipe.data.eval)


class _Pins:
    """The commits found so far. A hub that gave no answer is not asked again: each silence takes seconds."""

    def __init__(self, *, progress: bool, ask_hub: bool) -> None:
        self._progress = progress and ask_hub
        self._found: dict[tuple[str, str | None, str | None], tuple[str, str]] = {}
        self._silence = None if ask_hub else hub.Unreachable("a plan asks no network")

    def of(self, repo: hub.Repo, subset: str | None) -> tuple[str, str]:
        """The commit, and why this one."""
        key = (repo.id, repo.revision, subset)
        if key not in self._found:
            self._found[key] = self._find(repo, subset)
        return self._found[key]

    def _find(self, repo: hub.Repo, subset: str | None) -> tuple[str, str]:
        if self._silence is None:
            try:
                commit = hub.look_up(repo).commit
            except hub.Unreachable as reason:
                self._silence = reason
            except DataError as refusal:
                if _cached(repo, subset) is None:
                    raise
                fix = f"{refusal.fix} Or HF_DATASETS_OFFLINE=1 reads the copy in the local cache."
                raise DataError(refusal.what, where=refusal.where, fix=fix) from refusal
            else:
                return commit, f"what {repo.revision or 'main'} of {repo.id} is on the hub now"
        cached = _cached(repo, subset)
        if cached is None:
            raise not_at_hand(self._silence, repo.kind, repo.id, repo.where) from self._silence
        if self._progress and hub.offline_variable(repo.kind) is None:
            print(f"{repo.id}: {self._silence}; reading the cached copy {cached[:12]}", file=sys.stderr, flush=True)
        return cached, f"the copy in the local cache: {self._silence}"


def _cached(repo: hub.Repo, subset: str | None) -> str | None:
    """The commit of the copy to read without the hub; None where there is none.

    The hub cache knows what a branch stood for; a copy of another commit stands in for the main branch alone.
    """
    known, copies = hub.cached_commit(repo), prepared_commits(repo.id, subset)
    if repo.revision is None and copies and known not in copies:
        return copies[-1]
    return known
