"""dev.py: what it decides, without installing anything."""

import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
from course_tools import laying
from jupyterlab_server.config import get_page_config
from jupyterlab_server.settings_utils import get_settings

ROOT = Path(__file__).resolve().parent.parent
dev = type("dev", (), runpy.run_path(str(ROOT / "dev.py")))
NOTIFICATION = "@jupyterlab/apputils-extension:notification"
OTHER_PYTHONS = [v for v in ("3.6", "3.7", "3.8", "3.9", "3.10", "3.14") if shutil.which(f"python{v}")]


def test_work_is_ignored_by_git():
    """Would catch answers that a pull could touch, or that a learner publishes by accident."""
    if (ROOT / ".git").exists():
        path = "work/01_attention/01_attention.ipynb"
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0


def test_the_lab_opens_a_copy():
    """Would catch a first screen that is an error, since the copy has another name, or a tracked file."""
    assert dev.START == laying.copies(ROOT)["notebooks/00_start_here.ipynb"]


def test_the_address_is_not_lost_between_messages(monkeypatch):
    """Would catch a page of JupyterLab's messages around the one line that `lab --no-browser` is for."""
    commands = []
    server = SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr(dev.subprocess, "Popen", lambda command, **_: commands.append(command) or server)
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: 0)
    monkeypatch.setitem(dev.lab.__globals__, "fetch_model", lambda: True)
    assert dev.lab(["--no-browser", "--log-level=INFO"]) == 0
    (command,) = commands
    assert command.index("--log-level=WARN") < command.index("--log-level=INFO")  # the last one counts


@pytest.mark.parametrize("is_class", [False, True])
def test_the_first_screen_asks_nothing_and_grades_nothing(tmp_path, monkeypatch, is_class):
    """Would catch a JupyterLab that asks about news again, or reads settings from elsewhere; a learner who
    sees nbgrader's menus, and an instructor who does not. JupyterLab's own server reads the settings here."""
    if is_class:
        (tmp_path / "classroom").mkdir()
        (tmp_path / "classroom" / "settings.toml").write_text("")
    folders = dev.jupyter_folders(str(tmp_path)).replace(str(tmp_path), str(ROOT))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", folders)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "mine"))
    lab = Path(sys.prefix) / "share" / "jupyter" / "lab"
    page = get_page_config([str(lab.parent / "labextensions")], str(lab / "settings"))
    assert "@jupyter/nbgrader" in [extension["name"] for extension in page["federated_extensions"]]
    assert ("@jupyter/nbgrader" in page["disabledExtensions"]) == (not is_class)
    found = get_settings(str(lab / "settings"), str(lab / "schemas"), "", NOTIFICATION)[0]
    news, updates = (found["schema"]["properties"][key] for key in ("fetchNews", "checkForUpdates"))
    assert news["default"] in [choice["const"] for choice in news["oneOf"]] and news["default"] == "false"
    assert updates["type"] == "boolean" and updates["default"] is False
    assert not (tmp_path / "mine").exists()


def test_settings_of_the_users_own_still_count(monkeypatch):
    """Would catch a course that takes the place of what an institution has set for its JupyterLab."""
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/etc/ours")
    assert dev.jupyter_folders().split(os.pathsep)[-1] == "/etc/ours"


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7), (4, 0)])
def test_another_python_is_told_what_to_do(version):
    """Would catch a traceback, or pip's own words, as the first thing that a learner sees."""
    said = dev.version_problem(version)
    assert said.startswith("The course runs on Python 3.11, 3.12 or 3.13, and this is ")
    assert f"{version[0]}.{version[1]}." in said and "dev.py ..." in said


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_the_supported_pythons_pass(version):
    """Would catch a gate that is closed to those it is for."""
    assert dev.version_problem(version) is None


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_dev_is_readable_to_a_python_that_it_refuses(version):
    """Would catch new syntax in dev.py: an old Python must reach the sentence that sends it away."""
    done = subprocess.run(
        [f"python{version}", str(ROOT / "dev.py"), "test"], capture_output=True, text=True, cwd=ROOT
    )
    if "pyenv" not in done.stderr:  # a shim that stands for a Python that is not chosen here
        assert done.returncode == 1 and done.stderr.startswith("The course runs on Python")


# --- .venv ---


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder that dev.py takes for its own, with an empty kvlearn and a .venv that holds nothing."""
    root = tmp_path / "a clone"
    (root / "kvlearn").mkdir(parents=True)
    (root / "kvlearn" / "__init__.py").touch()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    venv.create(root / ".venv", symlinks=True)
    point_to(root, monkeypatch)
    return root


def point_to(root, monkeypatch):
    places = {"ROOT": root, "VENV": root / ".venv", "PYTHON": root / ".venv/bin/python"}
    for name, place in places.items():
        monkeypatch.setitem(dev.prepare.__globals__, name, str(place))


def install(root):
    """As `pip install -e` leaves it: where to import kvlearn from, and what it was installed from."""
    (site,) = (root / ".venv").glob("lib/python3.*/site-packages")
    (site / "kvlearn.pth").write_text(f"{root}\n")
    (site / "kvlearn-1.dist-info").mkdir()
    (site / "kvlearn-1.dist-info" / "METADATA").write_text("Name: kvlearn\nVersion: 1\n")
    (site / "kvlearn-1.dist-info" / "direct_url.json").write_text(json.dumps({"url": root.as_uri()}))


def finish(root):
    (root / ".venv" / "kvlearn-stamp").write_text(dev.stamp(platform.python_version()))


def test_an_environment_that_is_finished_is_trusted(clone):
    """Would catch an installation of minutes at each start."""
    assert dev.ask_venv() == [platform.python_version(), None, None]
    install(clone)
    facts = dev.ask_venv()
    assert facts == [platform.python_version(), str(clone / "kvlearn" / "__init__.py"), str(clone)]
    assert not dev.is_ready(facts)
    finish(clone)
    assert dev.venv_problem(facts) is None and dev.is_ready(facts)


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_clone_elsewhere_gets_an_environment_of_its_own(clone, monkeypatch, how):
    """Would catch lessons that import the folder that the clone was copied from, or nothing at all."""
    install(clone)
    finish(clone)
    other = clone.parent / "elsewhere"
    shutil.move(clone, other) if how == "moved" else shutil.copytree(clone, other, symlinks=True)
    point_to(other, monkeypatch)
    facts = dev.ask_venv()
    assert not dev.is_ready(facts)
    assert dev.venv_problem(facts) == f"the old one was made for {clone}; this clone was moved or copied"


def test_a_clone_may_be_reached_by_two_names(clone, monkeypatch):
    """Would catch an environment that is made again and again where a link leads to the clone."""
    install(clone)
    finish(clone)
    link = clone.parent / "link"
    link.symlink_to(clone)
    point_to(link, monkeypatch)
    facts = dev.ask_venv()
    assert dev.venv_problem(facts) is None and dev.is_ready(facts)


def test_an_environment_that_imports_something_else_is_not_ready(clone):
    """Would catch `pip install .`: lessons would run a copy of kvlearn that no pull and no edit reaches."""
    finish(clone)
    (site,) = (clone / ".venv").glob("lib/python3.*/site-packages")
    facts = [platform.python_version(), str(site / "kvlearn" / "__init__.py"), str(clone)]
    (site / "kvlearn").mkdir()
    (site / "kvlearn" / "__init__.py").touch()
    assert dev.venv_problem(facts) is None and not dev.is_ready(facts)


def test_an_environment_whose_python_is_wrong(clone):
    """Would catch a .venv that is kept although no lesson can start in it."""
    assert dev.venv_problem(["3.10.13", None, None]) == "the old one has Python 3.10.13"
    (clone / ".venv/bin/python").unlink()
    assert dev.ask_venv() is None
    assert dev.venv_problem(None) == "the old one has no working Python"
    shutil.rmtree(clone / ".venv")
    assert dev.venv_problem(None) == "there is none yet"


def test_an_environment_without_pip_is_made_again(clone, monkeypatch):
    """Would catch "No module named pip", for ever: what uv makes, or a Ctrl-C leaves behind, has none."""
    done = []

    def pip(command, **_):
        done.append("pip")
        install(clone)
        return 0

    assert not dev.has_pip()
    monkeypatch.setitem(dev.prepare.__globals__, "make_venv", done.append)
    monkeypatch.setitem(dev.prepare.__globals__, "has_pip", lambda: False)
    monkeypatch.setitem(dev.prepare.__globals__, "pip_environment", dict)
    monkeypatch.setattr(dev.subprocess, "call", pip)
    dev.prepare()
    assert done == ["the old one has no working pip", "pip"]
    dev.prepare()
    assert len(done) == 2


def test_an_installation_that_ends_up_elsewhere_is_not_called_done(clone, monkeypatch):
    """Would catch a stamp on an environment that pip has put nothing into."""
    monkeypatch.setitem(dev.prepare.__globals__, "has_pip", lambda: True)
    monkeypatch.setitem(dev.prepare.__globals__, "pip_environment", dict)
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: 0)
    with pytest.raises(dev.Stop, match="does not import it from"):
        dev.prepare()
    assert not (clone / ".venv" / "kvlearn-stamp").exists()


def test_a_link_to_another_environment_is_not_cleared(clone, monkeypatch):
    """Would catch .venv made anew in the folder of another project that it is a link to."""
    shared = clone.parent / "shared"
    shutil.move(clone / ".venv", shared)
    (shared / "precious").touch()
    (clone / ".venv").symlink_to(shared)
    call = subprocess.call  # without pip, which takes seconds
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: call([*command, "--without-pip"]))
    dev.make_venv("a test")
    assert (shared / "precious").exists() and not (clone / ".venv").is_symlink()


# --- What the user's own settings may not change ---


def test_settings_of_python_stay_outside(monkeypatch):
    """Would catch a PYTHONPATH with another kvlearn in it, or a PYTHONHOME that stops the course's Python."""
    names = ("HOME", "PATH", "OPTIMIZE", "SAFEPATH", "WARNINGS", "STARTUP", "INSPECT", "NOUSERSITE", "UTF8")
    names += ("DONTWRITEBYTECODE",)  # without bytecode each start compiles the course again
    for name in names:
        monkeypatch.setenv("PYTHON" + name, "1")
    variables = dev.environment()
    assert [name for name in names if "PYTHON" + name in variables] == ["UTF8"]
    assert variables["PATH"].split(os.pathsep)[0] == str(ROOT / ".venv" / "bin")


def test_the_kernel_of_the_course_comes_first(monkeypatch, tmp_path):
    """Would catch lessons in the "python3" kernel of another environment, which JUPYTER_PATH names."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert dev.environment()["JUPYTER_PATH"] == f"{ROOT}/.venv/share/jupyter{os.pathsep}{tmp_path}"
    monkeypatch.delenv("JUPYTER_PATH")
    assert dev.environment()["JUPYTER_PATH"] == f"{ROOT}/.venv/share/jupyter"


def test_a_socks_proxy_stays_outside(monkeypatch):
    """Would catch a JupyterLab that dies of a missing package socksio before the first page."""
    for name in ("ALL_PROXY", "all_proxy", "https_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    monkeypatch.setenv("all_proxy", "SOCKS://127.0.0.1:1080/")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:8080")
    assert sorted(dev.socks_proxies()) == ["ALL_PROXY", "all_proxy"]
    variables = dev.environment()
    assert "ALL_PROXY" not in variables and "all_proxy" not in variables
    assert variables["https_proxy"] == "http://127.0.0.1:8080"


def test_settings_of_pip_say_where_from_but_not_where_to(monkeypatch, tmp_path):
    """Would catch "Can not perform a '--user' install", or a course that is installed into another folder."""
    (tmp_path / "pip.conf").write_text(
        "[global]\nuser = yes\ntimeout = 7\nindex-url = https://one.example\n"
        "[install]\ntarget = /t\nprefix = /p\nno-deps = yes\nfind-links =\n  /a\n  /b\ntimeout = 8\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_ROOT", "/r")
    monkeypatch.setenv("PIP_QUIET", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://two.example")
    variables = dev.pip_environment(sys.executable)
    pip = {name: value.split() for name, value in variables.items() if name.startswith("PIP_")}
    assert {name: pip.pop(name) for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_TIMEOUT")} == {
        "PIP_INDEX_URL": ["https://two.example"],
        "PIP_FIND_LINKS": ["/a", "/b"],
        "PIP_TIMEOUT": ["8"],
    }
    ours = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_NO_DEPS"}
    assert pip["PIP_CONFIG_FILE"] == [os.devnull] and not ours & set(pip)


def test_help_needs_no_docstring(tmp_path):
    """Would catch a bare `dev.py` that ends in a traceback under PYTHONOPTIMIZE=2 or PYTHONWARNINGS=error."""
    done = subprocess.run(
        [sys.executable, "-OO", "-P", "-W", "error", str(ROOT / "dev.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "") and "python3 dev.py test" in done.stdout


def test_the_stamp_follows_what_is_installed(tmp_path, monkeypatch):
    """Would catch an environment that is not renewed when a pin or the Python changed."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setitem(dev.stamp.__globals__, "ROOT", str(tmp_path))
    first = dev.stamp("3.11.7")
    assert dev.stamp("3.11.7") == first != dev.stamp("3.12.1")
    with open(tmp_path / "constraints.txt", "a") as file:
        file.write("another==1.0\n")
    assert dev.stamp("3.11.7") != first


def junit(passed=0, failed=0, errors=0, skipped=0):
    """A report of pytest with so many tests of each outcome."""
    inner = [""] * passed + ["<failure/>"] * failed + ["<error/>"] * errors + ["<skipped/>"] * skipped
    cases = "".join(f"<testcase>{outcome}</testcase>" for outcome in inner)
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"


def test_counts_come_from_what_pytest_reports(tmp_path):
    """Would catch errors of collection, or a pytest that never wrote its report, counted as nothing."""
    path = tmp_path / "junit.xml"
    path.write_text(junit(passed=4, failed=2, errors=1, skipped=3))
    assert dev.read_counts(str(path)) == (4, 3, 3)
    path.write_text("<testsuites><testsuite")
    assert dev.read_counts(str(path)) == (0, 1, 0)
    assert dev.read_counts(str(tmp_path / "none.xml")) == (0, 1, 0)


def test_a_test_that_fails_twice_counts_once(tmp_path):
    """Would catch "-1 passed": a test that fails, and then fails to clean up, is one test that failed."""
    path = tmp_path / "junit.xml"
    path.write_text("<testsuite><testcase><failure/><error/></testcase><testcase/></testsuite>")
    assert dev.read_counts(str(path)) == (1, 1, 0)


@pytest.mark.parametrize(
    "codes, report, line, code",
    [
        ((0, 0, 0), junit(passed=8, skipped=1), "10 passed, 0 failed, 1 skipped", 0),
        ((1, 0, 0), junit(passed=9), "10 passed, 1 failed, 0 skipped", 1),
        ((0, 1, 0), junit(passed=9), "10 passed, 1 failed, 0 skipped", 1),
        ((0, 0, 1), junit(passed=6, failed=2, errors=1), "8 passed, 3 failed, 0 skipped", 1),
        ((0, 0, 3), junit(passed=9), "11 passed, 1 failed, 0 skipped", 1),
        ((0, 0, 3), None, "2 passed, 1 failed, 0 skipped", 1),
    ],
    ids=["green", "lint", "format", "tests", "pytest stopped", "no report"],
)
def test_the_last_line_and_the_exit_code_agree(monkeypatch, capsys, codes, report, line, code):
    """Would catch a red run that exits with 0, or a line that hides which of the parts was red."""
    left = list(codes)

    def call(command, **_):
        if "pytest" in command and report:
            Path(command[command.index("--junitxml") + 1]).write_text(report)
        return left.pop(0)

    monkeypatch.setattr(dev.subprocess, "call", call)
    assert dev.test(["--fast"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert left == []


def test_fast_leaves_out_the_notebooks_and_all_leaves_nothing_out(monkeypatch):
    """Would catch a full run that skips what takes long, and `--all` that is handed on to pytest."""
    commands = []
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: commands.append(command) or 0)
    monkeypatch.setitem(dev.test.__globals__, "fetch_model", lambda: True)
    dev.test(["--fast"])
    dev.test([])
    dev.test(["--all"])
    fast, full, everything = [command for command in commands if "pytest" in command]
    assert "not slow and not thorough" in fast and "notebooks" not in fast
    assert "not thorough" in full and {"tests", "notebooks", "solutions"} <= set(full)
    assert everything[-3:] == ["tests", "notebooks", "solutions"] and "-m" not in everything[3:]


@pytest.mark.parametrize("cores, fast, full", [(1, "2", "4"), (2, "2", "4"), (3, "3", "5"), (96, "4", "6")])
def test_workers_by_cores(monkeypatch, cores, fast, full):
    """Would catch a core that waits while another test sleeps, and a server with more workers than memory."""
    commands = []
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: commands.append(command) or 0)
    monkeypatch.setitem(dev.test.__globals__, "fetch_model", lambda: True)
    monkeypatch.setattr(dev.os, "cpu_count", lambda: cores)
    dev.test(["--fast"])
    dev.test([])
    assert [c[c.index("-n") + 1] for c in commands if "pytest" in c] == [fast, full]


def test_fast_and_all_contradict_each_other():
    """Would catch one of the two that wins without a word."""
    with pytest.raises(dev.Stop, match="Use --fast or --all, not both"):
        dev.test(["--fast", "--all"])


def test_an_unknown_command_and_no_command(tmp_path):
    """Would catch a typo that starts an installation, or a bare `dev.py` that says nothing."""
    run = [sys.executable, str(ROOT / "dev.py")]
    done = subprocess.run([*run, "tset"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("There is no command 'tset'. There is: lab, test, build, python, bench.")
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "python3 dev.py lab" in done.stdout


# --- .ci/run ---

PROGRAMS = ("bash", "dirname", "mktemp", "tee", "sed", "tail", "rm", "sh")
REPORT = """#!/bin/sh
if [ "$1" = -c ]; then exit 0; fi
echo "$1 $2 $3, $KVLEARN_REQUIRE_MODEL $CI"
echo "{line}"
exit {code}
"""


def run_ci(tmp_path, ci="", **scripts):
    """.ci/run in a folder of its own, where every Python is a script that prints its last line at once."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name))
    for name, script in dict(scripts, bwrap="#!/bin/sh\n", git="#!/bin/sh\n").items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "CI": ci}
    command = [str(tmp_path / ".ci" / "run"), "-k", "x"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "newest, last, code",
    [
        (("2 passed, 0 failed, 0 skipped", 0), "9 passed, 0 failed, 1 skipped", 0),
        (("2 passed, 1 failed, 0 skipped", 1), "9 passed, 1 failed, 1 skipped", 1),
        (("2 passed, 0 failed, 0 skipped", 1), "9 passed, 1 failed, 1 skipped", 1),
        (("Killed", 137), "7 passed, 1 failed, 1 skipped", 1),
    ],
    ids=["green", "red", "an exit code alone", "no last line"],
)
def test_ci_adds_up_both_pythons(tmp_path, newest, last, code):
    """Would catch a CI that is green while the newest Python is red, or that runs the tiny stand-in model."""
    line, newest_code = newest
    scripts = {
        "python3": REPORT.format(line="7 passed, 0 failed, 1 skipped", code=0),
        "python3.13": REPORT.format(line=line, code=newest_code),
        "python3.12": "#!/bin/sh\nexit 1\n",
    }
    done = run_ci(tmp_path, **scripts)
    said = done.stdout.splitlines()
    assert done.returncode == code and said[-1] == last, done.stdout + done.stderr
    assert sum(bool(re.match(r"\d+ passed", one)) for one in said) == 1
    assert said[0] == "dev.py test -k, 1 1" and "/clone/dev.py test --fast, 1 1" in said[2]


@pytest.mark.parametrize("ci, last, code", [("", "7 passed, 0 failed", 0), ("true", "7 passed, 1 failed", 1)])
def test_ci_does_not_lose_the_newest_python_in_silence(tmp_path, ci, last, code):
    """Would catch a CI that goes on without the newest Python once an image comes without one."""
    scripts = {
        "python3": REPORT.format(line="7 passed, 0 failed, 1 skipped", code=0),
        "python3.13": "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n",  # a shim
    }
    done = run_ci(tmp_path, ci, **scripts)
    assert done.returncode == code and "Neither Python 3.13 nor 3.12" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1].startswith(last)


def test_ci_finds_a_python_of_pyenv(tmp_path):
    """Would catch a search that stops at the shim, which stands on the PATH and does not run."""
    python = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(REPORT.format(line="2 passed, 0 failed, 0 skipped", code=0))
    python.chmod(0o755)
    done = run_ci(tmp_path, python3=REPORT.format(line="7 passed, 0 failed, 1 skipped", code=0))
    assert done.stdout.splitlines()[-1] == "9 passed, 0 failed, 1 skipped", done.stdout + done.stderr
