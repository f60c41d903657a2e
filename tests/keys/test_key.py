"""Keys: derivation pinned, standard normal, derivable in parts, and silent about the seed."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
import inspect
import io
import itertools
import json
import logging
import pickle
import traceback
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy  # loads scipy.stats, which takes a second, only where it is used
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from harness.processor_time import in_units
from sigil.errors import ConfigError, KeyFileError, ShapeError, SigilError
from sigil.keys.draws import _log, standard_normal
from sigil.keys.key import Key
from sigil.keys.length import default_bits
from sigil.keys.statement import KeyFields

# A seed that looks random, so that finding it in some text is no accident.
SEED = hashlib.sha256(b"the seed of the key tests").digest()


def small_key(**changes: Any) -> Key:
    fields: dict[str, Any] = {"owner": "Ångström & Co", "shape": (3, 2, 2), "bits": 5, "seed": SEED}
    return Key.generate(**fields | changes)


# The derivation written once more, slowly: HMAC for HKDF, one AES block at a time, SciPy's quantiles.


def prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def slow_hkdf(salt: bytes, info: bytes) -> bytes:
    return hmac.digest(hmac.digest(salt, SEED, "sha256"), info + b"\x01", "sha256")


def slow_encoding(key: Key) -> bytes:
    """F of a key of which only owner, shape and bits were chosen."""
    shape = "x".join(map(str, key.shape)).encode()
    return prefixed(
        *(b"2", key.owner.encode("utf-8"), b"none", b"none", b"none", b"none", shape, b"none", b"none"),
        *(str(key.bits).encode(), b"paper", b"none", b"none", b"512", b"3e-7", b"fan-out-normal", b"none"),
    )


def slow_statement(key: Key) -> bytes:
    public = key.signing_key().public_key().public_bytes_raw()
    committed = prefixed(b"sigil commitment v2") + slow_encoding(key) + prefixed(public, SEED)
    fields = {
        "alpha": "3e-7",
        "bits": key.bits,
        "classes": None,
        "commitment": hashlib.sha256(committed).hexdigest(),
        "cut": None,
        "evidence_key": public.hex(),
        "format": "sigil-statement/2",
        "initialiser": "fan-out-normal",
        "input_shape": None,
        "inputs_digest": None,
        "model": None,
        "normalisation": None,
        "owner": key.owner,
        "probes": 512,
        "scheme": "paper",
        "seal": "none",
        "shape": list(key.shape),
        "share_rule": None,
        "version": 2,
        "width": None,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def slow_subkey(key: Key, purpose: str) -> bytes:
    info = prefixed(b"sigil v2", purpose.encode()) + hashlib.sha256(slow_statement(key)).digest()
    return slow_hkdf(bytes(32), info)


def slow_stream(key: Key, purpose: str, size: int) -> bytes:
    block = Cipher(algorithms.AES(slow_subkey(key, purpose)), modes.ECB()).encryptor()
    blocks = [block.update(i.to_bytes(16, "big")) for i in range(-(-size // 16))]
    return b"".join(blocks)[:size]


def slow_matrix(key: Key) -> np.ndarray[Any, np.dtype[np.float32]]:
    count = key.dimension * key.bits
    words = np.frombuffer(slow_stream(key, "matrix", 4 * count), dtype="<u4")
    normal = scipy.special.ndtri((words + 0.5) / 2.0**32)
    return normal.astype(np.float32).reshape(key.dimension, key.bits)


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().astype("<f4").tobytes()).hexdigest()


# Golden vectors: a change of any of these makes every existing key worthless.


def test_golden_key() -> None:
    key = small_key()
    assert key.commitment == "0b356a733743242f2896b33c144b0b6493705924e5ff53ac741dc8242a247267"
    assert sha256(key.matrix) == "7d0ff1088f3a9f256d95c38360c3696216f314b4a8c561506e7c09c799239d0f"
    assert key.target.tolist() == [1.0, 0.0, 0.0, 1.0, 1.0]
    large = small_key(shape=(64, 8, 8), bits=50)
    assert sha256(large.matrix) == "64e08aec69ced5562a7f8c43c63feb242cec4c8bec032b8785b0b8eb9211d6e9"
    assert (
        sha256(large.noise_probes(0, 3, (3, 8, 8)))
        == "051298cf15a9966fdbf575aea3ecf47d1627eca08ab5b1b8057edb818128edfc"
    )
    assert large.choose(5, 1000).tolist() == [771, 224, 241, 718, 967]
    assert large.share_of(1, 4, 2).nonzero().flatten().tolist() == [
        0,
        3,
        4,
        7,
        9,
        10,
        13,
        14,
        17,
        19,
        20,
        22,
        25,
        26,
        29,
        30,
        32,
        34,
        37,
        39,
        40,
        42,
        45,
        47,
        49,
    ]
    assert (
        sha256(large.initial("conv1.weight", (4, 3, 3, 3)))
        == "de7cfa3cb2dc257c0cca277581d6983fedb5145d53b7aad5772e4c040c561d1b"
    )
    assert (
        sha256(large.initial("fc.weight", (10, 8)))
        == "dbb9dc5d9052f091e6916fbb01754386820237a0318ab16540f07ca3d0db6f88"
    )


def test_the_slow_implementation_agrees() -> None:
    key = small_key()
    assert sha256(torch.from_numpy(slow_matrix(key))) == sha256(key.matrix)
    stream = slow_stream(key, "target", 1)
    assert key.target.tolist() == [float(stream[0] >> j & 1) for j in range(5)]
    assert key.statement().encode() == slow_statement(key)
    secret = slow_hkdf(b"sigil key v2", prefixed(b"evidence") + slow_encoding(key))
    assert key.signing_key().private_bytes_raw() == secret


def test_every_entry_is_the_quantile_of_its_word() -> None:
    key = small_key(shape=(64, 8, 8), bits=50)
    np.testing.assert_allclose(key.matrix.numpy(), slow_matrix(key), rtol=1e-6)


def test_quantiles_at_the_ends_and_at_the_seams() -> None:
    seam = int(0.075 * 2**32)  # where the central formula gives way to the tails
    near = np.arange(-50, 50)
    words = np.concatenate(
        [np.arange(100), 2**31 + near, seam + near, 2**32 - seam + near, 2**32 - 1 - np.arange(100)]
    ).astype("<u4")
    expected = scipy.special.ndtri((words + 0.5) / 2.0**32)
    np.testing.assert_allclose(standard_normal(words), expected, rtol=1e-14)
    assert abs(standard_normal(words)).max() == pytest.approx(6.338, abs=1e-3)


def test_quantiles_are_odd_and_increasing() -> None:
    words = np.arange(0, 2**32, 65_537, dtype=np.uint64).astype("<u4")
    values = standard_normal(words)
    assert (np.diff(values) > 0).all()
    mirrored = standard_normal((np.uint32(2**32 - 1) - words).astype("<u4"))
    assert (values == -mirrored).all()


def test_logarithm() -> None:
    x = np.concatenate([2.0 ** -np.arange(1.0, 34.0), np.linspace(1e-9, 0.08, 10_001)])
    np.testing.assert_allclose(_log(x), np.log(x), rtol=5e-16)


# The distribution of M and b.


def test_matrix_isstandard_normal() -> None:
    matrix = small_key(shape=(256, 8, 8), bits=50).matrix
    assert matrix.dtype == torch.float32
    assert matrix.shape == (16_384, 50)
    entries = matrix.double().numpy().ravel()
    n = entries.size
    assert abs(entries.mean()) < 4 / n**0.5
    assert abs(entries.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs(scipy.stats.kurtosis(entries)) < 4 * (24 / n) ** 0.5
    assert scipy.stats.kstest(entries, "norm").pvalue > 1e-3


def test_columns_are_nearly_orthogonal() -> None:
    matrix = small_key(shape=(256, 8, 8), bits=50).matrix.double()
    unit = matrix / matrix.norm(dim=0)
    cosines = (unit.T @ unit)[~torch.eye(50, dtype=torch.bool)]
    scale = 16_384**-0.5
    assert cosines.square().mean().sqrt() == pytest.approx(scale, rel=0.1)
    assert cosines.abs().max() < 5 * scale


def test_target_bits_are_fair() -> None:
    target = small_key(bits=65_536).target
    assert target.dtype == torch.float32
    assert set(target.tolist()) == {0.0, 1.0}
    assert abs(target.mean() - 0.5) < 4 * 0.5 / 65_536**0.5


# Any part of M alone, quickly and in bounded memory.


@given(st.data())
def test_rows_are_the_rows_of_the_matrix(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    key = small_key(shape=shape, bits=data.draw(st.integers(1, 40)))
    start = data.draw(st.integers(0, key.dimension))
    stop = data.draw(st.integers(start, key.dimension))
    rows = key.rows(start, stop)
    assert rows.shape == (stop - start, key.bits)
    assert torch.equal(rows, key.matrix[start:stop])


def test_rows_across_blocks() -> None:
    key = small_key(shape=(4_100,), bits=49)
    assert torch.equal(key.rows(4_095, 4_100), key.matrix[4_095:])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 13), (13, 13)])
def test_rows_outside_the_matrix_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ShapeError, match="0 to 12"):
        small_key().rows(start, stop)


def test_derivation_takes_about_a_tenth_of_a_second_of_the_processor_at_most() -> None:
    key = small_key(shape=(256, 8, 8), bits=50)
    assert in_units(lambda: key.rows(0, key.dimension), tries=5) < 30


def test_derivation_needs_little_more_memory_than_the_result() -> None:
    key = small_key(shape=(65_536,), bits=3_000)
    tracemalloc.start()
    try:
        rows = key.rows(64_000, 66_000 - 464)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - rows.numel() * 4 < 8 * 2**20


def test_a_matrix_beyond_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise MemoryError

    key = small_key(shape=(2**26,), bits=65_536)
    monkeypatch.setattr(np, "empty", refuse)
    with pytest.raises(ConfigError, match=r"16384\.0 GiB"):
        _ = key.matrix


# What a key is made of.


def test_fresh_keys_differ() -> None:
    keys = [Key.generate("ACME", shape=(4,)) for _ in range(20)]
    assert len({key.commitment for key in keys}) == 20
    assert keys[0].bits == 32
    assert keys[0].version == 2


@pytest.mark.parametrize(
    ("shape", "bits", "stamped"),
    [
        *[((256, 8, 8), 512, 512), ((32, 8, 8), 128, 128), ((2047,), 128, 127), ((1024,), 128, 64)],
        *[((256,), 128, 64), ((255,), 127, 64), ((128,), 64, 64), ((127,), 63, 63), ((16,), 32, 32)],
        ((1,), 32, 32),
    ],
)
def test_keys_are_as_long_as_their_shape_has_room_for(
    shape: tuple[int, ...], bits: int, stamped: int
) -> None:
    assert default_bits(shape) == bits
    assert Key.generate("ACME", shape=shape).bits == bits
    assert Key.generate("ACME", shape=shape, seal="rfc3161").bits == stamped


def test_generation_leaves_the_global_random_states_alone() -> None:
    def states() -> list[bytes]:
        numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
        return [torch.get_rng_state().numpy().tobytes(), repr(numpy_state).encode()]

    before = states()
    _ = Key.generate("ACME", shape=(4,)).matrix
    assert states() == before


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "Ångström & Co."},
        {"shape": (2, 3, 2)},
        {"shape": (12,)},
        {"bits": 6},
        {"seed": SEED[:-1] + bytes([SEED[-1] ^ 1])},
    ],
    ids=str,
)
def test_every_field_changes_everything(change: dict[str, Any]) -> None:
    key, other = small_key(bits=64), small_key(**{"bits": 64} | change)
    columns = min(key.bits, other.bits)
    assert key != other
    assert key.commitment != other.commitment
    assert not torch.equal(key.target[:columns], other.target[:columns])
    assert (key.matrix[:, :columns] != other.matrix[:, :columns]).float().mean() > 0.99
    assert key.signing_key().private_bytes_raw() != other.signing_key().private_bytes_raw()


def test_fields_cannot_be_shifted_into_one_another() -> None:
    fields = [("A", (1, 1)), ("A", (1,)), ("A1", (1,)), ("1", (1, 1))]
    keys = [Key.generate(owner, shape=shape, bits=1, seed=SEED) for owner, shape in fields]
    assert len({key.commitment for key in keys}) == len(fields)


def test_composed_and_decomposed_names_are_the_same_owner() -> None:
    assert small_key(owner="A\u030angstro\u0308m & Co") == small_key()
    assert small_key(owner="A\u030angstro\u0308m & Co").owner == "Ångström & Co"


@pytest.mark.parametrize(
    "owner",
    [
        *("", " ", "ACME ", " ACME", "AC\nME", "ACME\r", "A\tB", "A\x00B", "A\x1b[2J"),
        *("A\u200bB", "A\u202eB", "A\u2028B", "A\ud800B", "x" * 129),
    ],
    ids=ascii,
)
def test_impossible_owners_are_refused(owner: str) -> None:
    with pytest.raises(ConfigError, match="printable characters"):
        small_key(owner=owner)


@pytest.mark.parametrize("owner", ["A", "x" * 128, "株式会社シギル", 'O"Neil \\ Sons', "𠀀" * 128])
def test_printable_owners_are_accepted(owner: str) -> None:
    key = small_key(owner=owner)
    assert key.owner == owner
    assert "\n" not in key.statement()
    assert json.dumps(owner, ensure_ascii=False) in key.statement()


@pytest.mark.parametrize("shape", [(), (0,), (3, -1), (1, 1, 1, 1, 1), (2**26, 2), (2**80,)], ids=str)
def test_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="activation shape"):
        small_key(shape=shape)


@pytest.mark.parametrize("bits", [0, -1, 65_537])
def test_impossible_lengths_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="number of bits"):
        small_key(bits=bits)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_impossible_seeds_are_refused(seed: bytes) -> None:
    with pytest.raises(ConfigError, match="exactly 32 bytes"):
        small_key(seed=seed)


def test_shapes_and_lengths_of_other_integer_types() -> None:
    key = small_key(shape=torch.Size([3, 2, 2]), bits=np.int64(5))
    assert key == small_key()
    assert key.shape == (3, 2, 2)
    assert type(key.bits) is int


def test_keys_compare_by_commitment() -> None:
    assert small_key() == small_key()
    assert hash(small_key()) == hash(small_key())
    assert small_key() != small_key().commitment
    assert len({small_key(), small_key(), small_key(bits=6)}) == 2


@pytest.mark.parametrize("name", ["owner", "bits", "matrix", "target", "_seed", "_matrix", "new"])
def test_a_key_never_changes(name: str) -> None:
    key = small_key()
    with pytest.raises(AttributeError):
        setattr(key, name, torch.zeros(12, 5))
    with pytest.raises(AttributeError):
        delattr(key, name)


def test_matrix_and_target_are_derived_once() -> None:
    key = small_key()
    assert key.matrix is key.matrix
    assert key.target is key.target


# The seed stays where it is.


def spellings(secret: bytes) -> list[bytes]:
    """The ways in which 32 bytes could turn up in some text or file."""
    as_list = ", ".join(map(str, secret))
    number = str(int.from_bytes(secret))
    texts = [secret.hex(), secret.hex().upper(), repr(secret)[2:-1], as_list, number]
    return [secret, secret[::-1], *(text.encode() for text in texts)]


def shows_seed(content: str | bytes) -> bool:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    return any(spelling in data for spelling in spellings(SEED))


def full_report(action: Callable[[], object]) -> str:
    """All that the most talkative error reporter could learn from a failing action."""
    try:
        action()
    except SigilError as error:
        chain: list[BaseException | None] = [error, error.__cause__, error.__context__]
        texts = [f"{link!r} {link} {vars(link) if link else ''}" for link in chain]
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
        return "\n".join([*texts, *trace.format()])
    raise AssertionError("the action did not fail")


def test_the_search_for_the_seed_finds_it() -> None:
    def careless() -> None:
        secret = SEED  # noqa: F841 - found through the local variables
        raise ConfigError("oops")

    assert shows_seed(full_report(careless))
    assert shows_seed(repr({"seed": SEED}))
    assert shows_seed(f"{SEED.hex()}")
    assert shows_seed(pickle.dumps(SEED))


def test_descriptions_do_not_show_the_seed(caplog: pytest.LogCaptureFixture) -> None:
    key = small_key()
    with caplog.at_level(logging.DEBUG):
        _ = key.matrix, key.target
        texts = [repr(key), str(key), f"{key}", f"{[key]}", key.statement(), key.commitment]
    assert not any(shows_seed(text) for text in [*texts, caplog.text])
    assert repr(key) == (
        f"Key(owner='Ångström & Co', shape=(3, 2, 2), bits=5, commitment='{key.commitment[:12]}…')"
    )
    with pytest.raises(TypeError):
        vars(key)


@pytest.mark.parametrize(
    "carry",
    [
        *(partial(pickle.dumps, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy,
        copy.deepcopy,
        lambda key: torch.save({"key": key}, io.BytesIO()),
        lambda key: key.__getstate__(),
        lambda key: key.__reduce__(),
    ],
)
def test_pickles_and_copies_are_refused(carry: Callable[[Key], object]) -> None:
    with pytest.raises(KeyFileError, match="pickled or copied"):
        carry(small_key())
    assert not shows_seed(full_report(lambda: carry(small_key())))


def test_refused_fields_do_not_show_the_seed() -> None:
    for change in ({"owner": ""}, {"shape": ()}, {"bits": 0}, {"owner": "\ud800"}):
        assert not shows_seed(full_report(partial(call_generate, change)))
    assert not shows_seed(full_report(lambda: small_key().rows(5, 3)))


def call_generate(change: dict[str, Any]) -> Key:
    fields: dict[str, Any] = {"owner": "ACME", "shape": (4,), "bits": 5} | change
    return Key.generate(fields["owner"], shape=fields["shape"], bits=fields["bits"], seed=SEED)


def broken_files(directory: Path) -> dict[str, tuple[Path, str | None]]:
    """Key files of SEED that cannot be loaded: name -> (path, passphrase to try)."""
    plain, locked = directory / "plain.key", directory / "locked.key"
    small_key().save(plain)
    small_key().save(locked, passphrase="open sesame")
    text = plain.read_bytes()
    contents = {
        "truncated": text[:-10],
        "not UTF-8": text.replace("Å".encode(), b"\xc5\xff"),
        "not JSON": text.replace(b'"bits":5', b'"bits":'),
        "wrong checksum": text[:-4] + bytes([text[-4] ^ 1]) + text[-3:],
        "newer": text.replace(b"sigil-key/2", b"sigil-key/3"),
    }
    cases: dict[str, tuple[Path, str | None]] = {
        "locked": (locked, None),
        "wrong passphrase": (locked, "close sesame"),
        "empty passphrase": (locked, ""),
        "invalid passphrase": (locked, "\ud800"),
    }
    for name, content in contents.items():
        path = directory / f"{name}.key"
        path.write_bytes(content)
        cases[name] = (path, None)
    content = json.loads(text)
    del content["checksum"]
    for name, change in {"other owner": {"owner": "Eve"}, "no bits": {"bits": 0}}.items():
        path = directory / f"{name}.key"
        path.write_bytes(with_checksum(content | {"statement": content["statement"] | change}))
        cases[name] = (path, None)
    return cases


def with_checksum(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-1]},"checksum":"{checksum}"}}\n'.encode()


def test_failing_files_do_not_show_the_seed(tmp_path: Path) -> None:
    for name, (path, passphrase) in broken_files(tmp_path).items():
        report = full_report(partial(Key.load, path, passphrase=passphrase))
        assert not shows_seed(report), name
    existing = tmp_path / "plain.key"
    for path in (existing, tmp_path / "missing" / "x.key", tmp_path / "a\0b"):
        assert not shows_seed(full_report(partial(small_key().save, path)))
    word = "\ud800"
    assert not shows_seed(full_report(lambda: small_key().save(existing, passphrase=word)))


def test_an_encrypted_file_does_not_show_the_seed(tmp_path: Path) -> None:
    small_key().save(tmp_path / "a.key", passphrase="open sesame")
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]
    assert not shows_seed((tmp_path / "a.key").read_bytes())


# Key.load on top of the file format.


@pytest.mark.parametrize("passphrase", [None, "open sesame"])
def test_save_and_load(tmp_path: Path, passphrase: str | None) -> None:
    key = small_key()
    key.save(tmp_path / "a.key", passphrase=passphrase)
    loaded = Key.load(str(tmp_path / "a.key"), passphrase=passphrase)
    assert loaded == key
    assert (loaded.owner, loaded.shape, loaded.bits) == (key.owner, key.shape, key.bits)
    assert torch.equal(loaded.matrix, key.matrix)
    assert torch.equal(loaded.target, key.target)
    assert loaded.statement() == key.statement()


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "Eve"},
        {"owner": ""},
        {"owner": "A\u030angstro\u0308m & Co"},
        {"shape": [2, 3, 2]},
        {"shape": []},
        {"bits": 6},
        {"bits": 10**30},
        {"commitment": "0" * 64},
        {"version": 1},
        {"version": 3},
        {"seed": "0" * 64},
    ],
    ids=str,
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    small_key().save(tmp_path / "a.key")
    content = json.loads((tmp_path / "a.key").read_bytes())
    del content["checksum"]
    changed = change if "seed" in change else {"statement": content["statement"] | change}
    (tmp_path / "b.key").write_bytes(with_checksum(content | changed))
    (tmp_path / "b.key").chmod(0o600)
    with pytest.raises(KeyFileError, match="contradicts itself"):
        Key.load(tmp_path / "b.key")


def test_nothing_but_fields_a_seed_and_a_seal_goes_into_a_key() -> None:
    assert set(inspect.signature(Key).parameters) == {"fields", "seed", "stamp"}
    stated = {field.name for field in dataclasses.fields(KeyFields)}
    accepted = stated - {"version", "share_rule"} | {"seed", "carriers_per_bit"}
    assert set(inspect.signature(Key.generate).parameters) == accepted
    loading = set(inspect.signature(Key.load).parameters)
    assert loading == {"path", "passphrase"}


def test_purposes_are_independent() -> None:
    key = small_key()
    purposes = ("matrix", "target", "probes", "inputs", "share", "initial/a", "initial/b", "evidence")
    streams = [key._stream(purpose).octets(0, 64) for purpose in purposes]
    assert all(a != b for a, b in itertools.combinations(streams, 2))
