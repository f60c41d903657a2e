"""The command line in evidence: everything but the places of secrets."""

from __future__ import annotations

import pytest

from sigil.cli.terminal import recorded


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["verify", "a b.pt", "--key", "/home/ada/x.key", "--json"],
            "sigil verify 'a b.pt' --key KEY --json",
        ),
        (["verify", "a.pt", "--key=/home/ada/x.key"], "sigil verify a.pt --key=KEY"),
        (["verify", "-k", "/home/ada/x.key", "a.pt"], "sigil verify -k KEY a.pt"),
        (["verify", "-k/home/ada/x.key", "a.pt"], "sigil verify -k KEY a.pt"),
        (["verify", "a.pt", "-k", "--sign-with"], "sigil verify a.pt -k KEY"),
        (
            ["verify", "a.pt", "--passphrase-file", "/home/ada/p", "--sign-with=/home/ada/s.pem"],
            "sigil verify a.pt --passphrase-file FILE --sign-with=PEM",
        ),
    ],
)
def test_paths_of_keys_are_left_out(arguments: list[str], expected: str) -> None:
    assert recorded(arguments) == expected
