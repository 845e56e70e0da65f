"""Edge maps: thin, closed, without texture, the same everywhere, and kept beside the photos."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from standins import make_standins

from posterior_trees import cli
from posterior_trees.data import draw_edges, edges, load_split, store_edges
from posterior_trees.errors import DataError
from posterior_trees.imaging.regions import label, sizes
from posterior_trees.recipe import parse_recipe


def disc(side: int, row: float, column: float, radius: float) -> torch.Tensor:
    """A grey disc on white, antialiased over a pixel."""
    rows, columns = torch.meshgrid(*[torch.arange(side).double()] * 2, indexing="ij")
    distance = ((rows - row) ** 2 + (columns - column) ** 2).sqrt()
    shade = 0.5 + 0.5 * (distance - radius + 0.5).clamp(0, 1)
    return shade.expand(3, -1, -1).float()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.42, 0.5, 0.95])
def test_labels_are_those_of_scipy(share: float) -> None:
    mask = torch.rand(37, 53, generator=torch.Generator().manual_seed(0)) < share
    expected, count = ndimage.label(mask.numpy(), np.ones((3, 3)))
    found = label(mask)
    assert np.array_equal(found.numpy(), expected)
    assert sizes(found).tolist() == np.bincount(expected.ravel())[1:].tolist()
    assert count == len(sizes(found))


@pytest.mark.parametrize("is_full", [False, True])
def test_labels_of_nothing_and_of_everything(is_full: bool) -> None:
    assert label(torch.full((5, 4), is_full)).unique().tolist() == [int(is_full)]


def test_a_spiral_is_one_component() -> None:
    """The longest way that numbers can have: it winds through the whole picture."""
    mask = torch.zeros(41, 41, dtype=torch.bool)
    top, left, bottom, right = 0, 0, 40, 40
    while top <= bottom and left <= right:
        mask[top, max(left - 2, 0) : right + 1] = mask[top : bottom + 1, right] = True
        mask[bottom, left : right + 1] = mask[top + 2 : bottom + 1, left] = True
        top, left, bottom, right = top + 2, left + 2, bottom - 2, right - 2
    assert label(mask).max() == ndimage.label(mask.numpy(), np.ones((3, 3)))[1] == 1


def test_nothing_to_see_gives_a_white_map() -> None:
    for value in (0, 90, 255):
        assert (draw_edges(np.full((3, 32, 48), value, np.uint8)) == 255).all()


def test_a_step_is_one_line_one_pixel_thin() -> None:
    x = torch.zeros(3, 64, 64)
    x[:, :, 32:] = 0.6
    found = edges.find_edges(x)
    assert (found.sum(dim=1) == 1).all()
    assert found[:, 31:33].any(dim=1).all()
    assert torch.equal(edges.find_edges(x.mT), found.T)


def test_of_two_equal_neighbours_one_is_the_edge() -> None:
    strength = torch.tensor([0.0, 0.2, 1.0, 1.0, 0.2, 0.0]).repeat(5, 1)
    for angle in (0.0, torch.pi):
        found = edges._is_peak(strength, torch.full_like(strength, angle))[:, 1:-1]
        assert (found.sum(dim=1) == 1).all()


def test_a_weak_line_is_drawn_where_it_continues_a_strong_one() -> None:
    weak, fading = torch.full((2, 3, 64, 64), 0.45)
    weak[:, :, 32:] += 0.1
    assert not edges.find_edges(weak).any()
    fading[:, :, 32:] += torch.linspace(0.3, 0.1, 64)[:, None]
    assert edges.find_edges(fading).any(dim=1).all()


def test_a_disc_has_its_circle_and_nothing_else() -> None:
    found = edges.find_edges(disc(128, 60.3, 66.7, 35.2))
    rows, columns = found.nonzero(as_tuple=True)
    distance = ((rows - 60.3) ** 2 + (columns - 66.7) ** 2).sqrt()
    assert (distance - 35.2).abs().max() < 1.2
    assert label(found).max() == 1  # closed, in one piece
    inside = ndimage.binary_fill_holes(found.numpy())
    assert inside[60, 66]
    # A digital circle has between 4√2 r (diagonal steps) and 8 r (sides only) pixels.
    assert 4 * 2**0.5 * 35.2 - 4 < len(rows) < 8 * 35.2


def test_mirrored_photos_have_mirrored_edges() -> None:
    x = disc(96, 40.3, 50.1, 21.7) * disc(96, 61.9, 33.4, 17.2)
    assert torch.equal(edges.find_edges(x.flip(2)), edges.find_edges(x).flip(1))
    assert torch.equal(edges.find_edges(x.mT), edges.find_edges(x).T)


def test_colours_of_one_brightness_have_an_edge() -> None:
    x = torch.full((3, 48, 48), 0.5)
    x[0, :, :24], x[2, :, :24] = 0.8, 0.2
    assert edges.find_edges(x)[8:40].any(dim=1).all()
    assert not edges.find_edges(x.mean(dim=0, keepdim=True)).any()


def test_white_on_white_and_black_on_black_are_seen() -> None:
    """A contrast of 0.06 at either end is an edge, the same in the middle is not."""
    shape = disc(128, 64.0, 64.0, 30.0) * 2 - 1
    seen = [bool(edges.find_edges(low + 0.06 * (1 - shape)).any()) for low in (0.0, 0.47, 0.94)]
    assert seen == [True, False, True]


def test_texture_is_left_out(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.ones(3, 128, 128)
    x[:, 32:96, 32:96] = 0.35 + 0.3 * torch.rand(64, 64, generator=generator)
    with_surround = edges.find_edges(x)[38:90, 38:90].double().mean()
    outline = edges.find_edges(x).double().sum() - edges.find_edges(x)[38:90, 38:90].sum()
    monkeypatch.setattr(edges, "SURROUND", 0.0)
    without = edges.find_edges(x)[38:90, 38:90].double().mean()
    assert with_surround < 0.35 * without
    assert outline > 200  # of about 256


def test_short_fragments_are_left_out(monkeypatch) -> None:
    speck = disc(128, 64.0, 64.0, 1.2)
    assert not edges.find_edges(speck).any()
    monkeypatch.setattr(edges, "SHORTEST", 1)
    assert edges.find_edges(speck).any()


def test_sixteen_bits_have_the_edges_of_eight() -> None:
    photo = (255 * disc(64, 30.2, 31.7, 14.4)).round().byte().numpy()
    eight, sixteen = draw_edges(photo), draw_edges(photo * np.uint16(257))
    assert np.array_equal(eight, sixteen)
    assert set(np.unique(eight)) == {0, 255}


def test_large_photos_have_the_lines_of_small_ones() -> None:
    """Twice the size: the same circle, twice as long, still one pixel thin."""
    small, large = (edges.find_edges(disc(s, s / 2, s / 2, s / 4)) for s in (128, 256))
    assert label(large).max() == label(small).max() == 1
    assert large.sum() == pytest.approx(2 * int(small.sum()), rel=0.08)


# --- as a set -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_standins(tmp_path_factory.mktemp("data"))


@pytest.fixture
def shoes(folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "shoes128.tar").write_bytes((folder / "shoes128.tar").read_bytes())
    return tmp_path


SPEC = parse_recipe('task = "shoes_from_edges"').data


def test_the_edge_maps_of_a_set_belong_to_its_photos(shoes: Path) -> None:
    images = load_split(SPEC, shoes, "train")
    assert images.y is not None
    assert images.x.dtype == images.y.dtype == torch.uint8
    assert images.y.shape == (17, 1, 32, 32)
    for x, y in zip(images.x, images.y, strict=True):
        assert np.array_equal(draw_edges(x.numpy()), y.numpy())
        assert 0.02 < (y == 0).double().mean() < 0.3
    streamed = load_split(SPEC, shoes, "train", resident_limit_bytes=0)
    assert streamed.nbytes == images.nbytes
    assert torch.equal(streamed.batch([3])[1], images.batch([3])[1])


def test_stored_edge_maps_are_read_instead_of_drawn(shoes: Path, monkeypatch) -> None:
    drawn = load_split(SPEC, shoes, "test")
    file = store_edges(shoes, "shoes128")
    assert file == shoes / "shoes128_edges1.tar"
    monkeypatch.setattr(edges, "find_edges", lambda x: pytest.fail("drawn again"))
    stored = load_split(SPEC, shoes, "test")
    assert torch.equal(stored.y, drawn.y)
    with tarfile.open(file) as tar:
        assert len(tar.getnames()) == 20
        assert tar.getnames()[0].endswith(".webp.png")


def test_stored_edge_maps_of_another_size_are_drawn_anew(shoes: Path) -> None:
    store_edges(shoes, "shoes128")
    changed = parse_recipe('task = "shoes_from_edges"', ["data.size=[16, 24]"]).data
    images = load_split(changed, shoes, "test")
    assert images.y.shape == (2, 1, 16, 24)
    assert np.array_equal(draw_edges(images.x[0].numpy()), images.y[0].numpy())


def test_the_command_keeps_the_maps_and_names_what_is_missing(shoes: Path, capsys) -> None:
    cli.main(["data", "--data", str(shoes), "--edges", "shoes128"])
    assert str(shoes / "shoes128_edges1.tar") in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(DataError, match="the set 'boots' is not in"):
        store_edges(shoes, "boots")
    assert [f.name for f in shoes.glob("*.part")] == []


def test_a_map_has_one_channel(shoes: Path) -> None:
    wrong = parse_recipe('task = "shoes_from_edges"', ["data.input_channels=3"]).data
    with pytest.raises(DataError, match="edge maps have 1 channel"):
        load_split(wrong, shoes, "test")


def test_a_line_that_fades_ends_where_it_is_too_faint_to_be_drawn() -> None:
    """Also as part of a strong line: a contrast of 0.1 is drawn, one of 0.05 is not."""
    contrast = torch.linspace(0.3, 0.0, 64)
    x = torch.full((3, 64, 64), 0.45)
    x[:, :, 32:] += contrast[:, None]
    is_drawn = edges.find_edges(x).any(dim=1)
    assert is_drawn[contrast > 0.1].all()
    assert not is_drawn[contrast < 0.05].any()


@pytest.mark.parametrize("zoom", [1, 2, 4])
def test_what_is_drawn_does_not_depend_on_the_number_of_pixels(zoom: int) -> None:
    """Contrasts and lengths are those of the picture, not of its pixels: a slope is less steep per
    pixel where there are more of them, and a fragment of as many pixels is shorter."""
    side = 128 * zoom
    shape = disc(side, side / 2, side / 2, 30.0 * zoom) * 2 - 1
    seen = [bool(edges.find_edges(0.4 + c * (1 - shape)).any()) for c in (0.1, 0.2)]
    assert seen == [False, True]
    assert not edges.find_edges(disc(side, side / 2, side / 2, 1.2 * zoom)).any()
