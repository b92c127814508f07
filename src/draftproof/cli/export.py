"""`draftproof export`: from arguments to a folder that another engine loads."""

from __future__ import annotations

from types import SimpleNamespace

from draftproof import profiles
from draftproof.cli.progress import Running
from draftproof.export import by_hand, export, of_profile
from draftproof.out_folders import check_folder


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    chosen = (given.draft, given.heads, given.num_draft_tokens, given.min_confidence)
    loading = {"revision": given.revision, "trust_remote_code": given.trust_remote_code}
    alone = profiles.is_profile(given.what)
    if alone and given.profile is not None:
        raise ValueError("a profile is given twice: write the model, and --profile FILE")
    if alone or given.profile is not None:
        if any(each is not None for each in chosen):
            raise ValueError(
                "a profile says itself what drafts: drop --draft, --heads, --num-draft-tokens and "
                "--min-confidence, or the profile"
            )
        asked = of_profile(
            given.what if alone else given.profile, None if alone else given.what, **loading
        )
    else:
        draft, heads, length, confidence = chosen
        asked = by_hand(given.what, draft, heads, length=length, confidence=confidence, **loading)
    check_folder(given.out.absolute().parent)
    with Running() as running:
        running(f"writing {given.out}", None)
        lines = export(asked, given.engine, given.out, precision=given.dtype)
    print(f"written: {given.out.absolute()}")
    print("\n".join(lines))
    return 0
