"""Seals: real time stamps seal a key, and nothing that an authority did not sign changes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import utils
from cryptography.x509.oid import ExtendedKeyUsageOID

from sigil.errors import KeyFileError, SealError
from sigil.keys import der, seal
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.testing.authority import DemonstrationAuthority, _certify

SEED = bytes(range(32))


def key_to_stamp(**changes: Any) -> Key:
    return Key.generate(**{"owner": "ACME", "shape": (8, 4, 4), "seed": SEED, "seal": "rfc3161"} | changes)


@pytest.fixture(scope="module")
def waiting() -> Key:
    return key_to_stamp()


@pytest.fixture(scope="module")
def token(authority: Any, waiting: Key) -> bytes:
    return authority.answer(make_query(waiting.statement()))


@pytest.fixture(scope="module")
def sealed(waiting: Key, token: bytes) -> Key:
    return waiting.seal(token)


# Real authorities.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": "RSA"},
        {"algorithm": "P-384", "digest": "sha384"},
        {"digest": "sha512", "identifier": "sha512"},
        {"algorithm": "RSA", "identifier": "sha1"},
    ],
    ids=str,
)
def test_a_real_authority_seals_a_key(
    make_authority: Callable[..., Any], waiting: Key, options: dict[str, str]
) -> None:
    authority = make_authority(**options)
    key = waiting.seal(authority.answer(make_query(waiting.statement())))
    assert (key.kind, key.allowance_log2, key.awaits_seal) == ("stamped", 24, False)
    assert key.statement() == waiting.statement()
    assert key.stamped_at is not None
    assert abs(key.stamped_at - datetime.now(UTC)) < timedelta(hours=1)
    assert key.stamp is not None
    assert key.stamp.authority == "CN=Test tsa"
    assert key.stamp.serial > 0
    found = key.stamp.check(authority.roots)
    assert found.name == "CN=Test root"
    assert len(found.fingerprint) == 64


def test_the_demonstration_authority_seals_a_key(waiting: Key) -> None:
    authority = DemonstrationAuthority()
    key = waiting.seal(authority.answer(make_query(waiting.statement())))
    assert key.stamp is not None
    assert key.stamp.check([authority.root]).name == "CN=Demonstration root"
    (root,) = x509.load_pem_x509_certificates(authority.root_pem())
    assert root == authority.root
    for query in (b"", b"0", make_query("x")[:-1], bytes(5_000), der.write(der.SEQUENCE)):
        with pytest.raises(SealError, match="not a query"):
            authority.answer(query)


# What a seal does to a key.


def test_a_plain_key_is_sealed_as_a_new_one(authority: Any) -> None:
    plain = key_to_stamp(seal="none")
    waiting = plain.to_be_stamped()
    assert (plain.kind, plain.allowance_log2) == ("plain", 80)
    assert waiting.statement() != plain.statement()
    key = plain.seal(authority.answer(make_query(waiting.statement())))
    assert key.statement() == waiting.statement()
    assert key != plain
    assert (key.matrix != plain.matrix).float().mean() > 0.99
    assert key.bits == plain.bits


def test_every_stamp_makes_another_key(authority: Any, waiting: Key, sealed: Key) -> None:
    again = waiting.seal(authority.answer(make_query(waiting.statement())))
    assert again.commitment == sealed.commitment
    assert again != sealed
    assert hash(again) != hash(sealed)
    assert not torch.equal(again.target, sealed.target)
    assert (again.matrix != sealed.matrix).float().mean() > 0.99
    weights = [key.initial("a.weight", (2, 3, 3, 3)) for key in (again, sealed)]
    assert not torch.equal(*weights)
    assert not torch.equal(again.noise_probes(0, 2, (1, 2)), sealed.noise_probes(0, 2, (1, 2)))
    assert again.signing_key().private_bytes_raw() == sealed.signing_key().private_bytes_raw()


@pytest.mark.parametrize(
    "use",
    [
        lambda key: key.matrix,
        lambda key: key.target,
        lambda key: key.rows(0, 1),
        lambda key: key.noise_probes(0, 1, (2,)),
        lambda key: key.choose(1, 2),
        lambda key: key.share_of(0, 2, 1),
        lambda key: key.initial("a.weight", (2, 2)),
        lambda key: key.initialise(torch.nn.Linear(2, 2)),
    ],
)
def test_a_key_derives_nothing_before_its_seal(waiting: Key, use: Callable[[Key], object]) -> None:
    assert waiting.awaits_seal
    assert (waiting.kind, waiting.allowance_log2) == ("plain", 80)
    with pytest.raises(SealError, match="awaits its time stamp"):
        use(waiting)


def test_a_seal_is_for_good(sealed: Key, token: bytes) -> None:
    with pytest.raises(SealError, match="sealed already"):
        sealed.seal(token)


def test_a_stamp_for_another_key_is_refused(token: bytes) -> None:
    for other in (key_to_stamp(seed=bytes(32)), key_to_stamp(owner="Eve"), key_to_stamp(bits=65)):
        with pytest.raises(SealError, match="another statement"):
            other.seal(token)


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_the_seal_is_kept_in_the_key_file(
    tmp_path: Path, waiting: Key, sealed: Key, passphrase: str | None
) -> None:
    sealed.save(tmp_path / "a.key", passphrase=passphrase)
    again = Key.load(tmp_path / "a.key", passphrase=passphrase)
    assert again == sealed
    assert torch.equal(again.matrix, sealed.matrix)
    waiting.save(tmp_path / "b.key", passphrase=passphrase)
    assert Key.load(tmp_path / "b.key", passphrase=passphrase).awaits_seal


def test_a_key_file_with_another_keys_seal_is_refused(tmp_path: Path, sealed: Key, token: bytes) -> None:
    from sigil.keys import keyfile

    other = key_to_stamp(owner="Eve")
    plain = key_to_stamp(seal="none")
    for key, words in ((other, "is not sound"), (plain, "does not state")):
        content = keyfile.Content(key.statement(), token, SEED)
        keyfile.write(tmp_path / "a.key", content, overwrite=True)
        with pytest.raises(KeyFileError, match=words):
            Key.load(tmp_path / "a.key")


# Whom to trust.


def test_only_a_root_that_the_checker_gives_is_trusted(
    authority: Any, make_authority: Callable[..., Any], sealed: Key
) -> None:
    stamp = sealed.stamp
    assert stamp is not None
    foreign = make_authority()
    with pytest.raises(SealError, match="no given root"):
        stamp.check(foreign.roots)
    with pytest.raises(SealError, match="No root"):
        stamp.check([])
    assert stamp.check([*foreign.roots, *authority.roots]).name == "CN=Test root"


def recertified(
    authority: DemonstrationAuthority, usage: x509.ExtendedKeyUsage | None, *, critical: bool
) -> None:
    """Give an authority a certificate with another extended key usage, from its own root."""
    old = authority.certificate
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
    )
    if usage is not None:
        builder = builder.add_extension(usage, critical=critical)
    authority.certificate = builder.sign(authority._root_key, hashes.SHA256())


STAMPS, CODE = ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.CODE_SIGNING


@pytest.mark.parametrize(
    ("usage", "critical"),
    [
        (x509.ExtendedKeyUsage([STAMPS]), False),
        (x509.ExtendedKeyUsage([STAMPS, CODE]), True),
        (x509.ExtendedKeyUsage([CODE]), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), True),
        (None, False),
    ],
)
def test_certificates_for_more_than_time_stamps_are_refused(
    waiting: Key, usage: x509.ExtendedKeyUsage | None, critical: bool
) -> None:
    authority = DemonstrationAuthority()
    recertified(authority, usage, critical=critical)
    with pytest.raises(SealError, match="not for time stamps alone"):
        waiting.seal(authority.answer(make_query(waiting.statement())))


def test_a_foreign_certificate_of_the_same_name_and_number_is_refused(waiting: Key) -> None:
    """The library takes the first certificate with the signer's name and number for the signer's."""
    authority, forger = DemonstrationAuthority(), DemonstrationAuthority()
    old = authority.certificate
    twin = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(forger.certificate.public_key())
        .serial_number(old.serial_number)
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
        .add_extension(x509.ExtendedKeyUsage([STAMPS]), critical=True)
        .sign(forger._root_key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    parts = Parts(authority.answer(make_query(waiting.statement())))
    with pytest.raises(SealError, match="one name and number"):
        waiting.seal(parts.whole(certificates=sorted([*parts.certificates, twin])))
    with pytest.raises(SealError, match="does not hold the certificate"):
        waiting.seal(parts.whole(certificates=[twin]))


def test_a_certificate_of_a_client_of_the_same_root_stamps_nothing(waiting: Key) -> None:
    """An end user's certificate cannot certify an authority, though its chain leads to the root."""
    trusted, own = DemonstrationAuthority(), DemonstrationAuthority()
    own._root_key, own.root = trusted._key, trusted.certificate
    own.certificate = _certify(
        "own", own._key, issuer="Demonstration time stamps", by=trusted._key, stamping=True
    )
    parts = Parts(own.answer(make_query(waiting.statement())))
    middle = trusted.certificate.public_bytes(serialization.Encoding.DER)
    stamp = waiting.seal(parts.whole(certificates=sorted([*parts.certificates, middle]))).stamp
    assert stamp is not None
    with pytest.raises(SealError, match="no given root"):
        stamp.check([trusted.root])


EMAIL, SERVER = ExtendedKeyUsageOID.EMAIL_PROTECTION, ExtendedKeyUsageOID.SERVER_AUTH
ANY = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE


def restricted(
    name: str, key: Any, *, issuer: str, by: Any, uses: list[x509.ObjectIdentifier] | None, critical: bool
) -> x509.Certificate:
    """The certificate of an issuer whose certificates may be used for `uses`, or anything if None."""
    plain = _certify(name, key, issuer=issuer, by=by, stamping=False)
    builder = x509.CertificateBuilder(
        issuer_name=plain.issuer,
        subject_name=plain.subject,
        public_key=plain.public_key(),  # type: ignore[arg-type]
        serial_number=plain.serial_number,
        not_valid_before=plain.not_valid_before_utc,
        not_valid_after=plain.not_valid_after_utc,
        extensions=list(plain.extensions),
    )
    if uses is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=critical)
    return builder.sign(by, hashes.SHA256())


@pytest.mark.parametrize("restricts", ["intermediate", "upper", "root"])
@pytest.mark.parametrize(
    ("uses", "critical", "allowed"),
    [
        (None, False, True),
        ([STAMPS], True, True),
        ([SERVER, STAMPS], False, True),
        ([ANY], False, True),
        ([EMAIL], False, False),
        ([SERVER], True, False),
        ([EMAIL, SERVER, CODE], False, False),
    ],
)
def test_every_certificate_of_the_chain_must_allow_time_stamps(
    waiting: Key, restricts: str, uses: list[x509.ObjectIdentifier] | None, critical: bool, allowed: bool
) -> None:
    """An issuer of certificates for e-mail could otherwise make itself an authority under the same root."""
    trusted, middle, own = DemonstrationAuthority(), DemonstrationAuthority(), DemonstrationAuthority()
    limits = {name: (uses if name == restricts else None) for name in ("intermediate", "upper", "root")}
    root = restricted(
        "top",
        trusted._root_key,
        issuer="top",
        by=trusted._root_key,
        uses=limits["root"],
        critical=critical,
    )
    upper = restricted(
        "upper", trusted._key, issuer="top", by=trusted._root_key, uses=limits["upper"], critical=critical
    )
    lower = restricted(
        "lower", middle._key, issuer="upper", by=trusted._key, uses=limits["intermediate"], critical=critical
    )
    own.certificate = _certify("stamps", own._key, issuer="lower", by=middle._key, stamping=True)
    parts = Parts(own.answer(make_query(waiting.statement())))
    chain = [one.public_bytes(serialization.Encoding.DER) for one in (upper, lower)]
    stamp = waiting.seal(parts.whole(certificates=sorted([*parts.certificates, *chain]))).stamp
    assert stamp is not None
    if allowed:
        assert stamp.check([root]).name == "CN=top"
        return
    with pytest.raises(SealError, match="no given root"):
        stamp.check([root])
    # The same issuer with and without the restriction: the chain that allows it is enough.
    free = restricted("lower", middle._key, issuer="upper", by=trusted._key, uses=None, critical=False)
    if restricts == "intermediate":
        chain.append(free.public_bytes(serialization.Encoding.DER))
        stamp = waiting.seal(parts.whole(certificates=sorted([*parts.certificates, *chain]))).stamp
        assert stamp is not None
        assert stamp.check([root]).name == "CN=top"


def test_a_certificate_that_was_not_valid_at_the_time_is_refused(waiting: Key) -> None:
    authority = DemonstrationAuthority()
    query = make_query(waiting.statement())
    for moment in (datetime(1999, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)):
        stamp = waiting.seal(authority.answer(query, moment=moment)).stamp
        assert stamp is not None
        with pytest.raises(SealError, match=f"vouched for on {moment.year}"):
            stamp.check([authority.root])


def test_root_files(tmp_path: Path, authority: Any) -> None:
    assert seal.read_roots(authority.root_file) == authority.roots
    (tmp_path / "a.pem").write_text("hello")
    for name, words in (("a.pem", "no certificate"), ("none.pem", "cannot be read")):
        with pytest.raises(SealError, match=words):
            seal.read_roots(tmp_path / name)


# What was not signed changes nothing, or is refused.


class Parts:
    """A response taken apart, to be put together again with changes."""

    def __init__(self, response: bytes) -> None:
        status, content = der.read(response).parts()
        self.status = status.encoding
        self.kind, wrapped = content.parts()
        (signed,) = wrapped.parts()
        version, digests, info, certificates, signers = signed.parts()
        self.version, self.digests, self.info = version.encoding, digests.encoding, info.encoding
        self.certificates = [part.encoding for part in certificates.parts()]
        self.signers = [part.encoding for part in signers.parts()]
        self.signer = [part.encoding for part in signers.parts()[0].parts()]

    def whole(self, **changes: Any) -> bytes:
        parts = vars(self) | changes
        signers = parts["signers"]
        if "signer" in changes:
            signers = [der.write(der.SEQUENCE, *changes["signer"])]
        certificates = der.write(0xA0, *parts["certificates"]) if parts["certificates"] else b""
        signed = der.write(
            der.SEQUENCE,
            *(parts["version"], parts["digests"], parts["info"], certificates),
            *(parts.get("lists", b""), der.write(der.SET, *signers)),
        )
        wrapped = der.write(der.SEQUENCE, self.kind.encoding, der.write(0xA0, signed))
        return der.write(der.SEQUENCE, parts["status"], wrapped)


def outcome(waiting: Key, authority: Any, response: bytes) -> str:
    """What a response is taken for: refused, or the seal that it gives."""
    try:
        stamp = seal.read(response, seal._imprint(der.read(waiting_info(waiting)).parts()))
        stamp.check(authority.roots)
    except SealError:
        return "refused"
    return stamp.sigma.hex()


def waiting_info(waiting: Key) -> bytes:
    import hashlib

    digest = hashlib.sha256(waiting.statement().encode()).digest()
    algorithm = der.write(der.SEQUENCE, der.write_oid(seal._SHA256))
    imprint = der.write(der.SEQUENCE, algorithm, der.write(der.OCTETS, digest))
    return der.write(der.SEQUENCE, der.write_integer(1), der.write_oid("1.2.3"), imprint)


def test_a_response_put_together_again_is_the_same(token: bytes) -> None:
    assert Parts(token).whole() == token


def test_what_is_not_signed_changes_nothing_or_is_refused(
    authority: Any, make_authority: Callable[..., Any], waiting: Key, sealed: Key, token: bytes
) -> None:
    parts = Parts(token)
    assert sealed.stamp is not None
    same = sealed.stamp.sigma.hex()
    foreign = make_authority()
    certificates = [
        x509.load_pem_x509_certificate((foreign.folder / f"{name}.pem").read_bytes()).public_bytes(
            serialization.Encoding.DER
        )
        for name in ("root", "tsa")
    ]
    attribute = der.write(
        der.SEQUENCE, der.write_oid("1.2.3.4"), der.write_set(der.write(der.OCTETS, b"anything"))
    )
    signature = der.read(parts.signer[5]).octets()
    r, s = utils.decode_dss_signature(signature)
    flipped = utils.encode_dss_signature(r, seal._ORDERS["secp256r1"] - s)
    digest = der.write(der.SEQUENCE, der.write_oid(seal._SHA256))
    granted = der.write(der.SEQUENCE, der.write_integer(0), der.write(der.SEQUENCE, der.write(0x0C, b"hi")))
    signer = parts.signer

    def with_part(index: int, part: bytes) -> bytes:
        return parts.whole(signer=[*signer[:index], part, *signer[index + 1 :]])

    altered = {
        "the other of the two signatures": (with_part(5, der.write(der.OCTETS, flipped)), "same"),
        "an unsigned attribute": (parts.whole(signer=[*signer, der.write(0xA1, attribute)]), None),
        "a text in the status": (parts.whole(status=granted), None),
        "foreign certificates": (
            parts.whole(certificates=sorted([*parts.certificates, *certificates])),
            "same",
        ),
        "certificates in another order": (
            parts.whole(certificates=sorted([*parts.certificates, *certificates], reverse=True)),
            "same",
        ),
        "a certificate twice": (parts.whole(certificates=sorted(parts.certificates * 2)), "same"),
        "no certificates": (parts.whole(certificates=[]), "refused"),
        "foreign certificates only": (parts.whole(certificates=sorted(certificates)), "refused"),
        "no parameter of the hash": (with_part(2, digest), None),
        "another version of the signer": (with_part(0, der.write_integer(3)), None),
        "another version": (parts.whole(version=der.write_integer(5)), None),
        "two signers": (parts.whole(signers=parts.signers * 2), "refused"),
        "no signer": (parts.whole(signers=[]), "refused"),
        "not granted": (
            parts.whole(status=der.write(der.SEQUENCE, der.write_integer(2))),
            "refused",
        ),
        "granted with changes": (
            parts.whole(status=der.write(der.SEQUENCE, der.write_integer(1))),
            "refused",
        ),
        "bytes at the end": (token + b"\0", "refused"),
        "a long length": (lengthened(token), "refused"),
    }
    for name, (response, expected) in altered.items():
        assert response != token, name
        found = outcome(waiting, authority, response)
        wanted = {"same": {same}, "refused": {"refused"}, None: {same, "refused"}}[expected]
        assert found in wanted, name


def lengthened(response: bytes) -> bytes:
    """The same value with a length that has one byte more than it needs."""
    value = der.read(response)
    size = len(value.content).to_bytes(3, "big")
    return bytes((value.tag, 0x83)) + size + value.content


def test_every_changed_byte_gives_the_same_seal_or_is_refused(
    authority: Any, waiting: Key, sealed: Key, token: bytes
) -> None:
    """Each byte of a real response changed in two ways, and some left out: no third outcome."""
    assert sealed.stamp is not None
    same = sealed.stamp.sigma.hex()
    outcomes = {"refused": 0, same: 0}
    for place in range(len(token)):
        for change in (0x01, 0x80):
            altered = token[:place] + bytes((token[place] ^ change,)) + token[place + 1 :]
            outcomes[outcome(waiting, authority, altered)] += 1
    for place in range(0, len(token), 8):
        outcomes[outcome(waiting, authority, token[:place] + token[place + 1 :])] += 1
    assert outcomes["refused"] > 2 * len(token)


@pytest.mark.parametrize(
    "response", [b"", b"\x30", b"\x30\x00", b"\x30\x80\x00\x00", bytes(40_000), b"hello" * 20], ids=repr
)
def test_rubbish_is_refused_in_one_sentence(response: bytes) -> None:
    with pytest.raises(SealError) as caught:
        seal.read(response, bytes(32))
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
