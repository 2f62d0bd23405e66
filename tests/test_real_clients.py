"""The code of libraries that stitch or fold, as it is published, beside gpufold or on it.

`make test PEERS=1` installs them.
"""

from __future__ import annotations

from functools import partial
from time import process_time

import numpy as np
import pytest

import gpufold
from bench.clients import client
from bench.memory import resident_peak_or_why

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.peer("torch"),
    pytest.mark.filterwarnings("ignore"),  # what other people's modules warn of as they are imported
]


def noise(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def peaks_of(**runs):
    """Return the memory that each of several runs takes, and print it."""
    peak_of, why = resident_peak_or_why()
    if peak_of is None:
        pytest.skip(why)
    peaks = []
    for name, run in runs.items():
        start = process_time()
        peaks.append(peak_of(run))
        print(f"{name}: {process_time() - start:.2f} s, {peaks[-1] / 1e6:.0f} MB")
    return peaks


# ---- MONAI


NUMPYS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""What torch's modes of padding, which MONAI takes, are called by NumPy."""


def seen_with_its_neighbours(library):
    """Return a network of two classes whose elements depend on others of their tile, and on what lies outside."""
    return lambda tiles: library.concatenate([2 * tiles - library.flip(tiles, (-1,)), tiles * tiles - 1], 1)


@pytest.mark.peer("monai")
@pytest.mark.parametrize("mode", ["constant", "gaussian"])
@pytest.mark.parametrize("padding", NUMPYS)
@pytest.mark.parametrize(
    ("size", "tile", "overlap"),
    [((67, 90), (24, 32), 0.5), ((41, 13, 37), (16, 20, 12), 0.25), ((13, 33), (20, 40), 0.6)],
    ids=str,
)
def test_map_tiles_is_monais_sliding_window_inference(size, tile, overlap, padding, mode):
    """The same bits in every mode, of images smaller than a tile too, which lie in its middle."""
    image = noise(1, *size)
    theirs = client("monai.inferers").sliding_window_inference(
        torch.from_numpy(image)[None], tile, 3, seen_with_its_neighbours(torch), overlap, mode, padding_mode=padding
    )
    window = client("monai.data.utils").compute_importance_map(tile, mode=mode).numpy()
    strides = [side if side >= extent else int(side * (1 - overlap)) for extent, side in zip(size, tile, strict=True)]
    for array, library in ((image, np), (torch.from_numpy(image), torch)):
        ours = gpufold.map_tiles(
            seen_with_its_neighbours(library),
            array,
            tile,
            strides=strides,
            window=window,
            batch=3,
            mode=NUMPYS[padding],
        )
        np.testing.assert_array_equal(ours, theirs[0])


@pytest.mark.peer("monai")
@pytest.mark.alone
def test_labels_of_many_classes_are_made_slab_by_slab():
    """MONAI has the scores of all classes at once; of map_tiles they are those of the rows that tiles reach."""
    classes, size, tile = 24, (192, 48, 48), (16, 32, 32)
    image, weight = torch.from_numpy(noise(1, *size)), torch.from_numpy(noise(classes, 1, 3, 3, 3))
    network, inferers = partial(torch.nn.functional.conv3d, weight=weight, padding=1), client("monai.inferers")
    window = client("monai.data.utils").compute_importance_map(tile, mode="gaussian")

    def theirs():
        return inferers.sliding_window_inference(image[None], tile, 2, network, 0.5, "gaussian")[0].argmax(0)

    def ours():
        return gpufold.map_tiles(
            network, image, tile, strides=(8, 16, 16), window=window, batch=2, finish=lambda rows: rows.argmax(0)
        )

    assert torch.equal(ours(), theirs())
    peaks = peaks_of(ours=ours, theirs=theirs)
    assert peaks[0] < 0.5 * peaks[1]


# ---- nnU-Net


@pytest.mark.peer("nnunetv2")
def test_nnunets_tiles_are_evenly_spaced_ones():
    steps_of = client("nnunetv2.inference.sliding_window_prediction").compute_steps_for_sliding_window
    rng = np.random.default_rng(0)
    for _ in range(200):
        tile = rng.integers(2, 60, 3)
        size = tile + rng.integers(0, 150, 3)
        tile -= tile % 2  # half a tile is a whole number of elements, as in nnU-Net's plans
        steps = steps_of(size.tolist(), tile.tolist(), 0.5)
        want = np.stack(np.meshgrid(*steps, indexing="ij"), -1).reshape(-1, 3)
        np.testing.assert_array_equal(gpufold.grid_positions(size, tile, strides=tile // 2, last="even"), want)


# ---- Demucs


@pytest.mark.peer("demucs")
@pytest.mark.parametrize(("length", "power"), [(2_345, 1.0), (1_900, 2.0), (2_400, 1.0)])
def test_demucs_overlap_add_has_the_same_bits(length, power):
    """Its last segment hangs over the end of the song."""

    class Separator(torch.nn.Module):
        sources, samplerate, segment = ("drums", "rest"), 100, 4.0

        def forward(self, mix):
            return torch.stack([2 * mix, mix * mix - 1], 1)

    song = noise(1, 2, length)
    theirs = client("demucs.apply").apply_model(
        Separator(), torch.from_numpy(song), shifts=0, overlap=0.25, transition_power=power
    )
    taps = 400
    rise = np.arange(1, taps // 2 + 1, dtype=np.float32)
    window = (np.concatenate([rise, rise[::-1]]) / np.float32(taps // 2)) ** np.float32(power)
    positions = np.arange(0, length, 300)[:, None]
    over = gpufold.grid_positions((length,), taps, strides=300, last="over")
    assert positions[: len(over)].tolist() == over.tolist()
    assert len(positions) - len(over) <= 1, "it also has a segment that lies wholly on the one before"
    stitcher = gpufold.Stitcher((2, 2, length), (taps,), window=window)
    segments = gpufold.take_blocks(song[0], positions, (taps,))
    stitcher.add(np.stack([2 * segments, segments * segments - 1], 1), positions)
    np.testing.assert_array_equal(stitcher.result(), theirs[0])


# ---- diffusers


def autoencoder():
    """Return an untrained autoencoder, of four pixels to an element of the latent."""
    torch.manual_seed(0)
    model = client("diffusers.models.autoencoders.autoencoder_kl").AutoencoderKL(
        block_out_channels=(4, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=2,
        sample_size=64,
        layers_per_block=1,
        mid_block_add_attention=False,
    )
    return model.eval().requires_grad_(False)


@pytest.mark.peer("diffusers")
@pytest.mark.all
@pytest.mark.alone
def test_a_decoder_that_sees_so_far_is_stitched_without_seams_in_less_memory():
    """Its normalisations are of the whole picture, and left out: what is left sees 13 elements around a pixel."""
    model = autoencoder()
    for module in model.decoder.modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.GroupNorm):
                setattr(module, name, torch.nn.Identity())
    latent, far = torch.randn(1, 4, 96, 192), 4 * 13

    def decode(tiles):
        return model.decoder(model.post_quant_conv(tiles))

    whole = model.decode(latent).sample[0]
    window = np.full(4 * 48, 1e-6, np.float32)
    window[far:-far] = 1
    model.enable_tiling()
    blended = (model.decode(latent).sample[0] - whole).abs().max()
    assert blended > 0.05 * whole.abs().max(), "where its tiles are blended"
    options = {"window": (window, window), "last": "over", "out": np.empty(whole.shape, np.float32)}
    mapped, tiled, at_once = peaks_of(
        map_tiles=lambda: gpufold.map_tiles(decode, latent[0], (48, 48), strides=22, **options),
        diffusers=lambda: model.decode(latent),
        whole=lambda: (model.disable_tiling(), model.decode(latent)),
    )
    near = (..., slice(-far), slice(-far))  # beyond the end, whole tiles have zeros where smaller ones end
    np.testing.assert_allclose(options["out"][near], whole[near], rtol=0, atol=1e-4 * float(whole.abs().max()))
    assert mapped < 1.25 * tiled + 20e6
    assert max(mapped, tiled) < at_once / 2
