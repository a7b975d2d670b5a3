"""How rlaunch reads CUDA_VISIBLE_DEVICES, against CUDA's driver: random lists, and what errors say of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import rlaunch
from conftest import IMPORT_CUDA, smi
from launching import Place, environment
from native_hooks import torch_devices

COUNT = 1000
Shown = Callable[[Sequence[str | None]], list[Any]]
# Texts of an error that says what the driver would do.
HIDES = re.compile(r"the driver would silently hide every device")
SHOWS = re.compile(r"the driver would silently show only (\S+?)[;,]")
CUTS = re.compile(r"the driver would silently read '(.*?)' as (\S+) and ignore the rest")
FINDS_NONE = re.compile(r"(occurs twice|are the same device), and CUDA would find no device")
INVALID_DEVICE = "cuInit: CUresult 101"


def elements(uuids: list[str]) -> list[str]:
    """What random lists are made of."""
    numbers = [str(number) for number in range(len(uuids) + 2)]
    names = [
        name
        for uuid in uuids
        for name in (
            uuid,
            uuid[:8],
            uuid[:12],
            uuid[:-1],
            "GPU-" + uuid[4:].upper(),
            uuid[4:],
            uuid + "0",
        )
    ]
    odd = [
        "-1",
        "-2",
        "+0",
        "00",
        " 0",
        "0 ",
        "\t0",
        "0x0",
        "1a",
        "0.5",
        "0;1",
        "",
        " ",
        "abc",
        "GPU-",
        "gpu-0",
    ]
    odd += [
        "GPU-0123",
        "GPU-zz",
        "MIG-0",
        "MIG-" + uuids[0],
        f"MIG-{uuids[0]}/0/0",
        "NoDevFiles",
        "none",
        "99999999999",
    ]
    return numbers * 3 + names * 2 + odd


def random_lists(uuids: list[str], count: int) -> list[str]:
    draw = random.Random(7)
    words = elements(uuids)
    # No list twice, in this order.
    found = dict.fromkeys(["all", "none", "void", "", " ", ",", *words])
    while len(found) < count:
        separator = draw.choice([",", ",", ",", ", ", " ,", ",,"])
        found[separator.join(draw.choice(words) for _ in range(draw.randint(1, 4)))] = None
    return list(found)


def by_rlaunch(shown: str, uuid_at: dict[str, str]) -> list[str] | str:
    """The UUIDs that rlaunch reads, or its error."""
    try:
        found = torch_devices({"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    except ValueError as error:
        return str(error)
    return [uuid_at[address] for address in found]


def list_of_claim(shown: str, error: str) -> str | None:
    """A list that the driver reads alike, if the error is right; None: the error says that CUDA fails."""
    if HIDES.search(error):
        return "-1"
    if found := SHOWS.search(error):
        return found[1]
    if found := CUTS.search(error):
        return shown.replace(found[1], found[2], 1)
    assert FINDS_NONE.search(error), error
    return None


def test_random_lists_are_read_as_the_driver_reads_them(
    uuids: list[str], shown: Shown, seen: Callable[[str, str], None]
) -> None:
    addresses = [address.lower()[4:] for (address,) in smi("gpu", "pci.bus_id")]
    uuid_at = dict(zip(addresses, uuids, strict=True))
    lists = random_lists(uuids, COUNT)
    read = {text: by_rlaunch(text, uuid_at) for text in lists}
    claims = {text: list_of_claim(text, found) for text, found in read.items() if isinstance(found, str)}
    elements_alone = sorted({word for text in lists for word in text.split(",")})
    asked = sorted({*lists, *elements_alone, *filter(None, claims.values())})
    driver = dict(zip(asked, shown(asked), strict=True))

    def is_right(text: str) -> bool:
        found, real = read[text], driver[text]
        if not isinstance(found, str):
            return bool(found == real)
        claim = claims[text]
        if claim is not None:
            return bool(driver[claim] == real)
        # A device that is not there ends the list: then no device after it is read at all.
        return real in (INVALID_DEVICE, []) or any(not driver[word] for word in text.split(","))

    wrong = [(text, read[text], claims.get(text), driver[text]) for text in lists if not is_right(text)]
    assert not wrong, "\n".join(map(repr, wrong))
    shown_some = sum(isinstance(driver[text], list) and bool(driver[text]) for text in lists)
    assert len(claims) > COUNT / 10
    assert shown_some > COUNT / 10
    read_alike = f"{COUNT - len(claims)} read as the driver reads them"
    refused = f"{len(claims)} refused with a text that is right"
    seen("`CUDA_VISIBLE_DEVICES`", f"{COUNT} lists: {read_alike}, {refused}; {shown_some} show a GPU")


def test_a_process_without_a_list_sees_what_rlaunch_counts(uuids: list[str], shown: Shown) -> None:
    assert shown([None]) == [uuids]
    assert rlaunch._lib.gpu_count() == len(uuids)
    assert rlaunch._lib.devices_seen({}) == ("gpu", len(uuids))


def test_ranks_see_the_gpus_that_they_are_given(
    place: Place, uuids: list[str], seen: Callable[[str, str], None]
) -> None:
    place.script(IMPORT_CUDA + "tell('saw', cuda.Driver().uuids()[int(os.environ['FLAGS_selected_gpus'])])")
    for wanted in ("0", uuids[0], uuids[0][:12], str(len(uuids) - 1)):
        ended = place.run("--gpus", wanted, "train.py", env=environment(CUDA_DEVICE_ORDER="PCI_BUS_ID"))
        assert ended.status == 0, ended.stderr
        assert place.text("saw.0") == (uuids[-1] if wanted == str(len(uuids) - 1) else uuids[0])
    seen("`--gpus` with a number, a UUID and the beginning of one", "each rank sees the GPU that was named")


def test_a_gpu_that_is_not_there_is_refused(place: Place, uuids: list[str]) -> None:
    place.script("tell('ready')")
    ended = place.run("--gpus", str(len(uuids)), "train.py")
    assert ended.status == 2
    assert f"device {len(uuids)} is not in the driver's devices" in ended.stderr
    ended = place.run("--gpus", "GPU-0123", "train.py")
    assert ended.status == 2
    assert "does not match exactly one device" in ended.stderr
