"""A real time-stamping authority: OpenSSL's, with a root and an intermediate certificate of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cryptography import x509

CONFIGURATION = """
[tsa]
default_tsa = own
[own]
dir = {folder}
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
certs = {folder}/chain.pem
signer_digest = {digest}
default_policy = 1.3.6.1.4.1.99999.1
digests = sha256
accuracy = secs:1
ordering = yes
tsa_name = yes
ess_cert_id_chain = no
ess_cert_id_alg = {identifier}
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
[stamps]
basicConstraints = CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = {usage}
"""


class OpenSslAuthority:
    """`openssl ts` with keys of its own; `answer` turns a query into a response."""

    def __init__(
        self,
        folder: Path,
        *,
        algorithm: str = "P-256",
        digest: str = "sha256",
        identifier: str = "sha256",
        usage: str = "critical, timeStamping",
        days: int = 3650,
    ) -> None:
        self.folder = folder
        folder.mkdir()
        text = CONFIGURATION.format(folder=folder, digest=digest, identifier=identifier, usage=usage)
        (folder / "openssl.cnf").write_text(text)
        (folder / "serial").write_text("0001\n")
        for name, kind in {"root": "P-256", "middle": "P-256", "tsa": algorithm}.items():
            curve = ["EC", "-pkeyopt", f"ec_paramgen_curve:{kind}"]
            self.run("genpkey", "-algorithm", *([kind] if kind == "RSA" else curve), "-out", f"{name}.key")
        self.certify("root", "root", "ca", days=days)
        self.certify("middle", "root", "ca", days=days)
        self.certify("tsa", "middle", "stamps", days=days)
        (folder / "chain.pem").write_bytes((folder / "middle.pem").read_bytes())
        self.root_file = folder / "root.pem"
        self.roots = [x509.load_pem_x509_certificate(self.root_file.read_bytes())]

    @classmethod
    def of(cls, root_file: Path) -> OpenSslAuthority:
        """The authority that was made in the folder `authority` beside a copy of its root."""
        made = cls.__new__(cls)
        made.folder = root_file.absolute().with_name("authority")
        return made

    def certify(self, name: str, issuer: str, extensions: str, *, days: int = 3650) -> None:
        subject = ["-subj", f"/CN=Test {name}", "-config", "openssl.cnf", "-key", f"{name}.key"]
        signer = ["-extfile", "openssl.cnf", "-extensions", extensions, "-days", str(days)]
        self.run("req", "-new", *subject, "-out", f"{name}.csr")
        if name == issuer:
            signer += ["-signkey", "root.key"]
        else:
            signer += ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key", "-CAcreateserial"]
        self.run("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem")

    def answer(self, query: bytes) -> bytes:
        (self.folder / "query.tsq").write_bytes(query)
        self.run("ts", "-reply", "-queryfile", "query.tsq", "-config", "openssl.cnf", "-out", "answer.tsr")
        return (self.folder / "answer.tsr").read_bytes()

    def run(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
