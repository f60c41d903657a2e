"""The private authority: made once, kept, extended; keys for the owner's eyes only."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID

from sigil.errors import NetworkError
from sigil.transport import ClientCredentials, ServerCredentials, certificates


def open_pem(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_federation_is_made_once_and_then_only_extended(tmp_path: Path) -> None:
    first = certificates.make(tmp_path, clients=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    second = certificates.make(tmp_path, clients=3)
    assert {index: second[index] for index in first} == first
    assert len(set(second.values())) == 3
    assert all(path.read_bytes() == content for path, content in before.items())


def test_keys_are_private_and_a_bundle_holds_only_its_own(tmp_path: Path) -> None:
    certificates.make(tmp_path, clients=2)
    keys = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.key"))
    assert keys == ["ca.key", "clients/0000/client.key", "clients/0001/client.key", "server.key"]
    for key in keys:
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
    bundle = certificates.bundle_folder(tmp_path, 1)
    assert sorted(path.name for path in bundle.iterdir()) == ["ca.pem", "client.key", "client.pem"]
    assert b"PRIVATE" not in (bundle / "ca.pem").read_bytes() + (bundle / "client.pem").read_bytes()


def test_certificates_say_what_they_are_for(tmp_path: Path) -> None:
    certificates.make(tmp_path, clients=1, hosts=["train.example", "10.0.0.5", "localhost"])
    authority = open_pem(tmp_path / "ca.pem")
    server = open_pem(tmp_path / "server.pem")
    client = open_pem(certificates.bundle_folder(tmp_path, 0) / "client.pem")
    for certificate, purpose in (
        (server, ExtendedKeyUsageOID.SERVER_AUTH),
        (client, ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        certificate.verify_directly_issued_by(authority)
        extensions = certificate.extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["sigil-server", "localhost", "train.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [
        "127.0.0.1",
        "10.0.0.5",
    ]
    with pytest.raises(x509.ExtensionNotFound):
        client.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_the_fingerprint_is_the_hash_of_the_der_form(tmp_path: Path) -> None:
    fingerprints = certificates.make(tmp_path, clients=1)
    bundle = certificates.bundle_folder(tmp_path, 0)
    assert fingerprints[0] == open_pem(bundle / "client.pem").fingerprint(SHA256()).hex()
    assert ClientCredentials.load(bundle).fingerprint == fingerprints[0]
    with pytest.raises(NetworkError, match="not a certificate"):
        certificates.fingerprint(b"-----BEGIN NOTHING-----")


def test_credentials_do_not_show_their_key(tmp_path: Path) -> None:
    certificates.make(tmp_path, clients=1)
    for credentials in (
        ServerCredentials.load(tmp_path),
        ClientCredentials.load(certificates.bundle_folder(tmp_path, 0)),
    ):
        assert "PRIVATE" not in repr(credentials)


def test_missing_damaged_and_overlong_files_are_named(tmp_path: Path) -> None:
    certificates.make(tmp_path, clients=1)
    with pytest.raises(NetworkError, match="nowhere"):
        ServerCredentials.load(tmp_path / "nowhere")
    key = tmp_path / "server.key"
    content = key.read_bytes()
    key.write_bytes(content[:60])
    with pytest.raises(NetworkError, match="damaged"):
        ServerCredentials.load(tmp_path)
    key.write_bytes(content + bytes(70_000))
    with pytest.raises(NetworkError, match="too long"):
        ServerCredentials.load(tmp_path)


def test_an_expired_certificate_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_LIFETIME", timedelta(seconds=-1))
    with pytest.raises(NetworkError, match=rf"expired on {datetime.now(UTC):%Y}"):
        certificates.make(tmp_path, clients=1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NetworkError, match="file"):
        certificates.make(tmp_path / "file", clients=1)
