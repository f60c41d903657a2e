"""The owner's record of its global models, from which a leaked local model can be traced to a client.

Only with the scheme "shares", where clients carry different bits. It is written after every round,
atomically, into the run's directory alone: nothing that clients are sent depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from sigil.errors import ConfigError, SigilError, TrainingError, reason
from sigil.federation.federation import Federation
from sigil.keys.key import Key
from sigil.keys.shares import check
from sigil.tracing.record import FILE, AgreementRecord, read_record

log = logging.getLogger("sigil.federation")

PROBES = 256


class AgreementRecorder:
    """Keeps :class:`AgreementRecord` up to date with the federation; does nothing where there are no shares.

    ``roster`` maps clients to the fingerprints of their certificates. Clients and their certificates are
    fixed before the first round: a run that goes on with another roster is refused, because the shares, and
    with them every trace, belong to the clients that were there.
    """

    def __init__(
        self, folder: Path, federation: Federation, key: Key | None, roster: Mapping[int, str] | None = None
    ) -> None:
        self.path, self.federation, self.key = folder / FILE, federation, key
        settings = federation.training.servers.settings
        self.active = key is not None and settings.marked and settings.watermark.scheme == "shares"
        if not self.active or key is None:
            return
        clients = settings.federation.clients
        fresh = AgreementRecord(
            commitment=key.commitment,
            clients=clients,
            carriers_per_bit=check(
                key.fields.share_rule, settings.watermark.carriers_per_bit, client=0, clients=clients
            ),
            bits=key.bits,
            roster=None if roster is None else dict(sorted(roster.items())),
        )
        self.record = fresh if federation.round == 0 else self._kept(fresh)

    def write(self) -> None:
        """Record the federation's global model as it is now, unless that was done."""
        number = self.federation.round
        if not self.active or self.key is None or number in self.record.rounds:
            return
        try:
            readings = self.federation.read_mark(self.key, probes=min(PROBES, self.key.fields.probes))
        except SigilError as error:
            log.warning("round %d could not be recorded for traces: %s", number, reason(error))
            return
        self.record = self.record.added(number, readings)
        self.record.write(self.path)

    def _kept(self, fresh: AgreementRecord) -> AgreementRecord:
        """What was recorded before an interruption, up to the round that training goes on from."""
        try:
            found = read_record(self.path).until(self.federation.round)
        except ConfigError:
            return fresh  # begun before there were records, or damaged
        if (found.commitment, found.clients, found.bits) != (fresh.commitment, fresh.clients, fresh.bits):
            return fresh
        if found.roster is not None and fresh.roster is not None and found.roster != fresh.roster:
            changed = [str(c) for c in sorted(fresh.roster) if found.roster.get(c) != fresh.roster[c]]
            raise TrainingError(
                f"The certificates of client {', '.join(changed)} are not those with which this run began, "
                "but shares of the mark belong to the clients of the first round; bring the certificates "
                "back, or begin another run."
            )
        return found
