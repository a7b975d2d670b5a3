"""One test of each outcome. They run as plain tests and as tests on two ranks."""

from __future__ import annotations

import sys

import pytest


def skip():
    pytest.skip("not here")


def fail():
    raise AssertionError("no")


def do_nothing():
    pass


def test_passes(place):
    assert place


@pytest.mark.parametrize("number", [1, 2, 3])
def test_parametrized(place, number):
    assert number != 2 or not place.is_last


def test_fails(place):
    assert not place.is_last


def test_fails_in_words(place):
    if place.is_last:
        pytest.fail("in words")


def test_exits(place):
    if place.is_last:
        sys.exit(3)


def test_crashes(place):
    if place.is_last:
        place.crash()


@pytest.fixture
def crash_in_setup(place):
    place.crash()


def test_crashes_in_setup(crash_in_setup):
    pass


@pytest.fixture
def crash_in_teardown(place):
    yield
    place.crash()


def test_crashes_in_teardown(crash_in_teardown):
    pass


def test_crashes_after_teardown(crash_after):
    pass


def test_hangs(place):
    if place.is_last:
        place.hang()


@pytest.mark.skip(reason="always")
def test_is_skipped():
    fail()


def test_skips(place):
    skip()


def test_one_skips(place):
    if place.is_last:
        skip()


def test_one_skips_another_fails(place):
    place.each(fail, skip)


def test_one_skips_another_crashes(place):
    place.each(place.crash, skip)


def test_one_xfails_another_fails(place):
    place.each(fail, lambda: pytest.xfail("known"))


@pytest.mark.xfail
def test_xfails(place):
    assert not place.is_last


@pytest.mark.xfail
def test_xpasses(place):
    pass


@pytest.mark.xfail(strict=True)
def test_xpasses_strictly(place):
    pass


def test_xfails_inside(place):
    if place.is_last:
        pytest.xfail("known")


@pytest.fixture
def fail_in_setup(place):
    if place.is_last:
        fail()


def test_fails_in_setup(fail_in_setup):
    pass


@pytest.fixture
def fail_in_teardown(place):
    yield
    if place.is_last:
        fail()


def test_fails_in_teardown(fail_in_teardown):
    pass


@pytest.fixture(scope="module")
def numbers():
    return [1, 2]


def test_module_fixture(numbers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(numbers) == 2


def test_output(capsys):
    print("said")
    assert capsys.readouterr().out == "said\n"


class TestClass:
    @pytest.fixture(autouse=True)
    def prepare(self, place):
        self.place = place

    def test_passes(self):
        assert self.place

    def test_fails(self):
        assert not self.place.is_last
