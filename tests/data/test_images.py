from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sigil.data import images
from sigil.errors import DataError


def png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that announces a size and has (almost) no data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_colour_picture_keeps_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    picture = images.open_picture(png(pixels))
    assert images.shape_of(picture, size=None) == (3, 5, 7)
    decoded = images.decode(png(pixels), (3, 5, 7))
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, pixels.transpose(2, 0, 1))


def test_grey_picture_has_one_channel_and_can_become_colour() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4), dtype=np.uint8)
    assert images.shape_of(images.open_picture(png(pixels)), size=8) == (1, 8, 8)
    assert np.array_equal(images.decode(png(pixels), (1, 4, 4))[0], pixels)
    assert np.array_equal(images.decode(png(pixels), (3, 4, 4)), np.stack([pixels] * 3))


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.array([[0, 256 * 100], [256 * 200 + 77, 65535]], dtype=np.uint16)
    assert images.decode(png(deep), (1, 2, 2)).tolist() == [[[0, 100], [200, 255]]]


def test_resized_picture_keeps_its_halves() -> None:
    pixels = np.zeros((40, 20), dtype=np.uint8)
    pixels[20:] = 200
    decoded = images.decode(png(pixels), (1, 8, 8))
    assert decoded.shape == (1, 8, 8)
    assert np.all(decoded[0, :3] == 0)
    assert np.all(decoded[0, 5:] == 200)


@pytest.mark.parametrize("side", [8_000, 60_000])
def test_huge_announced_size_is_refused_before_decoding(side: int) -> None:
    with pytest.raises(DataError):
        images.decode(png_header(side, side), (1, 8, 8), label="bomb.png")


def test_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_FILE_BYTES", 1000)
    path = tmp_path / "large.png"
    path.write_bytes(png(np.zeros((2, 2), dtype=np.uint8)) + bytes(1000))
    with pytest.raises(DataError, match=r"large\.png is larger"):
        images.open_picture(path)


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    whole = png(np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8))
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "TIFF")
    (tmp_path / "tiff.png").write_bytes(file.getvalue())
    for name in ("cut.png", "text.png", "tiff.png", "absent.png"):
        with pytest.raises(DataError, match=name):
            images.decode(tmp_path / name, (3, 30, 30))


@pytest.mark.parametrize("size", [0, -3, 100_000])
def test_impossible_size_is_refused(size: int) -> None:
    picture = images.open_picture(png(np.zeros((2, 2), dtype=np.uint8)))
    with pytest.raises(DataError, match="choose another size"):
        images.shape_of(picture, size=size)


def test_fill_keeps_the_order_and_passes_errors_on() -> None:
    target = np.zeros((300, 1, 1, 1), dtype=np.uint8)

    def decode_one(number: int) -> np.ndarray:
        if number == 999:
            raise DataError("this one")
        return np.full((1, 1, 1), number % 251, dtype=np.uint8)

    images.fill(target, range(300), decode_one)
    assert target.ravel().tolist() == [number % 251 for number in range(300)]
    with pytest.raises(DataError, match="this one"):
        images.fill(target, [*range(200), 999], decode_one)
