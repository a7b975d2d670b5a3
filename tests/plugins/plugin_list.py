"""The pytest plugins beside which tests on ranks are compared with plain tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plugin:
    """`name`: on PyPI. `place`: among the most downloaded packages there. `options`: its main feature.

    `tests`: source of tests that use it. `ini`, `files` and `variables` go with the options. `likely`: of the
    kinds in which faults are likely, so it belongs to the tests that CI runs.
    """

    name: str
    place: int
    options: str = ""
    tests: str = ""
    ini: str = ""
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    likely: bool = False

    def describe(self) -> str:
        """How its main feature is used, for the table."""
        uses = [f"`{self.options}`"] if self.options else []
        uses += [f"`{name}={value}`" for name, value in self.variables.items() if name != "HANGS"]
        if self.tests:
            uses.append("tests that use it")
        return ", ".join(uses)


def both(body: str, arguments: str = "", head: str = "", begin: str = "def") -> str:
    """Source of two tests that use a fixture or marker of the plugin; the second one fails."""
    source = ""
    for name, end in (("passes", "assert place"), ("fails", "assert not place.is_last")):
        names = ", ".join(filter(None, ["place", arguments]))
        lines = "\n    ".join([*body.splitlines(), end])
        source += f"\n\n{head}{begin} test_plugin_{name}({names}):\n    {lines}\n"
    return source


FLAKY = """
import pytest

@pytest.mark.{mark}
def test_plugin_fails_once(place, request):
    from pathlib import Path
    ran = Path("ran")
    if place.is_last and not ran.exists():
        ran.touch()
        raise AssertionError("the first time")
"""
ASYNC = "import asyncio\nimport pytest\n"
PLUGINS = [
    Plugin(
        "anyio",
        25,
        tests=ASYNC
        + "\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
        + both("await asyncio.sleep(0)", "", "@pytest.mark.anyio\n", "async def"),
    ),
    Plugin("pytest-cov", 190, "--cov=. --cov-branch", likely=True),
    Plugin(
        "pytest-asyncio",
        191,
        "--asyncio-mode=strict",
        tests=ASYNC + both("await asyncio.sleep(0)", "", "@pytest.mark.asyncio\n", "async def"),
    ),
    Plugin("pytest-json-ctrf", 209, "--ctrf report.json"),
    Plugin("pytest-xdist", 284, "-n 2", likely=True),
    Plugin(
        "pytest-mock",
        327,
        tests="import os\n"
        + both("mocker.patch('os.getcwd', return_value='x')\nassert os.getcwd() == 'x'", "mocker"),
    ),
    Plugin("typeguard", 409, "--typeguard-packages=json"),
    Plugin("faker", 431, tests=both("assert faker.name()", "faker")),
    Plugin("pytest-timeout", 477, "--timeout=60", variables={"HANGS": "1"}, likely=True),
    Plugin("pytest-rerunfailures", 655, "--reruns 1", FLAKY.format(mark="flaky(reruns=2)"), likely=True),
    Plugin(
        "hypothesis",
        684,
        "--hypothesis-seed=1",
        "from hypothesis import given, settings, strategies as st, HealthCheck\n"
        + both(
            "assert isinstance(number, int)",
            "number",
            "@settings(derandomize=True, max_examples=5, deadline=None, database=None,\n"
            "    suppress_health_check=list(HealthCheck))\n"
            "@given(number=st.integers())\n",
        ),
    ),
    Plugin(
        "pytest-metadata",
        726,
        "--metadata host here",
        tests=both("assert metadata['host'] == 'here'", "metadata"),
    ),
    Plugin("requests-mock", 854, tests=both("requests_mock.get('http://a', text='b')", "requests_mock")),
    Plugin("pytest-html", 901, "--html=report.html --self-contained-html"),
    Plugin(
        "pytest-env",
        931,
        tests="import os\n" + both("assert os.environ['OF_ENV'] == 'yes'"),
        ini="env =\n    OF_ENV=yes\n",
    ),
    Plugin(
        "respx",
        1116,
        tests="import pytest\n"
        + both("respx_mock.get('http://a')", "respx_mock", "@pytest.mark.respx(assert_all_called=False)\n"),
    ),
    Plugin("pytest-split", 1136, "--splits 2 --group 1"),
    Plugin(
        "pytest-benchmark",
        1202,
        "--benchmark-min-rounds=1 --benchmark-max-time=0.01",
        both("assert benchmark(len, 'ab') == 2", "benchmark"),
    ),
    Plugin("pytest-json-report", 1285, "--json-report"),
    Plugin("pytest-repeat", 1287, "--count 2"),
    Plugin("pytest-socket", 1327, "--disable-socket", likely=True),
    Plugin(
        "pytest-unordered",
        1375,
        tests="from pytest_unordered import unordered\n" + both("assert [1, 2] == unordered([2, 1])"),
    ),
    Plugin("syrupy", 1394, "--snapshot-update", both("assert 'text' == snapshot", "snapshot")),
    Plugin("pytest-base-url", 1399, "--base-url http://a", both("assert base_url == 'http://a'", "base_url")),
    Plugin("pytest-custom-exit-code", 1534, "--suppress-tests-failed-exit-code"),
    Plugin("pytest-icdiff", 1545, "-vv"),
    Plugin(
        "pytest-order",
        1577,
        "--order-scope=module",
        "import pytest\n" + both("pass", head="@pytest.mark.order(1)\n"),
    ),
    Plugin("pytest-httpx", 1601, tests=both("assert not httpx_mock.get_requests()", "httpx_mock")),
    Plugin("pytest-instafail", 1612, "--instafail"),
    Plugin(
        "allure-pytest",
        1641,
        "--alluredir=allure",
        "import allure\n" + both("with allure.step('one'):\n    pass"),
    ),
    Plugin(
        "pytest-randomly",
        1728,
        "--randomly-seed=7",
        "import random\n" + both("assert random.random() < 1"),
        likely=True,
    ),
    Plugin("pytest-sugar", 1735, "--force-sugar"),
    Plugin(
        "pytest-recording",
        1760,
        "--record-mode=none",
        "import pytest\n" + both("pass", head="@pytest.mark.vcr\n"),
    ),
    Plugin("pyfakefs", 1863, tests=both("fs.create_file('/a/b')", "fs")),
    Plugin(
        "pytest-dotenv",
        2043,
        tests="import os\n" + both("assert os.environ['OF_DOTENV'] == 'yes'"),
        files={".env": "OF_DOTENV=yes\n"},
        ini="env_files = .env\n",
    ),
    Plugin("flaky", 2272, "--force-flaky --max-runs=2", FLAKY.format(mark="flaky(max_runs=3)"), likely=True),
    Plugin(
        "pytest-check",
        2343,
        tests=both("check.equal(1, 1)", "check")
        + "\n\ndef test_plugin_check(check, place):\n"
        + "    check.equal(place.is_last, False)\n    check.equal(1, 1)\n",
    ),
    Plugin(
        "pytest-httpserver",
        2460,
        tests=both("httpserver.expect_request('/').respond_with_data('a')", "httpserver"),
    ),
    Plugin("pytest-testmon", 2567, "--testmon"),
    Plugin(
        "pytest-github-actions-annotate-failures", 2573, variables={"GITHUB_ACTIONS": "true"}, options="-v"
    ),
    Plugin("pytest-random-order", 2792, "--random-order --random-order-seed=7", likely=True),
    Plugin("pytest-retry", 2815, "--retries 1", FLAKY.format(mark="flaky(retries=2)"), likely=True),
    Plugin("pytest-snapshot", 2983, "--snapshot-update", both("assert True", "snapshot")),
    Plugin(
        "pytest-dependency",
        3094,
        tests="import pytest\n\n\n@pytest.mark.dependency(name='first')\n"
        "def test_plugin_first(place):\n    assert not place.is_last\n"
        "\n\n@pytest.mark.dependency(depends=['first'])\ndef test_plugin_second(place):\n    pass\n",
    ),
]
