"""Install what the course needs into .venv, then run one of the commands in HELP."""

import ast
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
VERSIONS = ((3, 11), (3, 12), (3, 13))
START = "work/00_start_here/00_lesson.ipynb"
# A constant, because Python started with -OO (PYTHONOPTIMIZE=2) has no docstrings.
HELP = """\
Set up the course and run it. Needs Python 3.11, 3.12 or 3.13 and nothing else.

    python3 dev.py lab            prepare everything, then open the lessons in JupyterLab
    python3 dev.py test           prepare everything, then run the checks (--fast: no notebooks, no slow
                                  tests; --all: also more seeds, mutants and assignments)
    python3 dev.py build [NAMES]  rebuild the notebooks from course/ (--force, --check)
    python3 dev.py python ARGS    run the course's own Python: a script, -m module, -c "..."
    python3 dev.py bench [ARGS]   measure this machine: benchmarks/

The first command takes some minutes: it makes `.venv`, installs what constraints.txt pins, and fetches
the language model. Later ones start in seconds. Nothing outside this folder changes, except that the
model goes into your user's cache. On Windows, write `py dev.py` for `python3 dev.py`.
"""


class Stop(Exception):
    """A reason to stop, in a sentence for the person at the keyboard."""


# --- The environment ---


def version_problem(version):
    """None, or what to do about a Python of `version` (major, minor) that the course does not run on."""
    if tuple(version) in VERSIONS:
        return None
    names = [f"python{major}.{minor}" for major, minor in reversed(VERSIONS)]
    found = [name for name in names if shutil.which(name)]
    if found:
        advice = f"This machine has one: {found[0]} dev.py ..."
    else:
        advice = "Install one of them, then start dev.py with it: python3.12 dev.py ..."
    this = ".".join(str(n) for n in version)
    return f"The course runs on Python 3.11, 3.12 or 3.13, and this is {this}. {advice}"


def environment(threads=True):
    """Environment variables for the commands: the course's own Python and kernel, and one thread per process.

    The course's Python would read the user's PYTHON variables too: PYTHONHOME stops it, PYTHONPATH puts other
    packages before its own, PYTHONOPTIMIZE removes the asserts of the tests, and PYTHONWARNINGS=error stops a
    lesson at any library's warning. Only those that change neither what code does nor how fast are passed on.
    """
    harmless = ("PYTHONUTF8", "PYTHONIOENCODING", "PYTHONUNBUFFERED")
    dropped = [name for name in os.environ if name.startswith("PYTHON") and name not in harmless]
    dropped += socks_proxies()
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    variables.update(JUPYTER_PREFER_ENV_PATH="1", VIRTUAL_ENV=VENV)
    first = {"PATH": os.path.dirname(PYTHON), "JUPYTER_PATH": os.path.join(VENV, "share", "jupyter")}
    for name, folder in first.items():
        variables[name] = os.pathsep.join(filter(None, [folder, variables.get(name)]))
    if threads:
        variables.setdefault("OMP_NUM_THREADS", "1")
    return variables


def socks_proxies():
    """Variables that name a SOCKS proxy: with one of them set, JupyterLab and pip stop at once."""
    names = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
    return [n for n, value in os.environ.items() if n.upper() in names and value.lower().startswith("socks")]


# Run by .venv's Python. Prints its version, the file that a lesson would import as kvlearn, and the folder
# that kvlearn was installed from (PEP 610).
FACTS = """
import importlib.metadata, importlib.util, json, platform, urllib.parse, urllib.request
kvlearn = importlib.util.find_spec("kvlearn")
try:
    text = importlib.metadata.distribution("kvlearn").read_text("direct_url.json")
except importlib.metadata.PackageNotFoundError:
    text = None
path = urllib.parse.urlparse(json.loads(text)["url"]).path if text else None
folder = path and urllib.request.url2pathname(path)
print(json.dumps([platform.python_version(), kvlearn and kvlearn.origin, folder]))
"""


def ask_venv():
    """The Python version of .venv, the kvlearn that it imports, and the folder that was installed from.

    The last two are None if kvlearn is not installed. The result is None if .venv has no working Python."""
    command = [PYTHON, "-I", "-c", FACTS]
    try:
        return json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL, env=environment()))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def same(path, other):
    return path is not None and os.path.exists(path) and os.path.samefile(path, other)


def is_this_folders(facts):
    return facts is not None and same(facts[1], os.path.join(ROOT, "kvlearn", "__init__.py"))


def venv_problem(facts):
    """Why .venv cannot be used and has to be made, or None if it can."""
    if not os.path.lexists(VENV):
        return "there is none yet"
    if facts is None:
        return "the old one has no working Python"
    version, _, made_for = facts
    if version_problem(tuple(int(n) for n in version.split(".")[:2])):
        return f"the old one has Python {version}"
    if made_for is not None and not same(made_for, ROOT):  # its scripts hold that path too
        return f"the old one was made for {made_for}; this clone was moved or copied"
    return None


def has_pip():
    command = [PYTHON, "-I", "-m", "pip", "--version"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return not subprocess.call(command, env=environment(), **quiet)


def make_venv(why):
    """Make .venv; where Python comes without ensurepip (Debian's), let its own pip fill it."""
    print(f"Making .venv ({why}) ...", flush=True)
    if os.path.islink(VENV):
        os.unlink(VENV)  # another clone may use the folder that it points to
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    without = [] if has_ensurepip else ["--without-pip"]
    command = [sys.executable, "-m", "venv", "--clear", *without, VENV]
    made = subprocess.call(command, env=environment())
    if not made and not has_ensurepip:
        pip = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "pip"]
        made = subprocess.call(pip, env=pip_environment(sys.executable))
    if made or ask_venv() is None:
        raise Stop(
            "Python could not make the environment .venv; its own words are above. "
            "On Debian or Ubuntu this helps: sudo apt install python3-venv. Then run this again."
        )


# What pip installs, and where, is decided here. Its other settings (where packages come from, a certificate,
# a proxy) are the user's choice.
PIP_OURS = ("user", "target", "prefix", "root", "python", "no-deps", "dry-run", "require-hashes")
PIP_OURS += ("requirement", "editable", "no-build-isolation")


def pip_environment(python=None):
    """Environment variables for pip: the user's settings, from variables and files, except PIP_OURS."""
    asked = [python or PYTHON, "-m", "pip", "config", "list", "-v"]
    # pip before 25 takes a setting `user = yes` for "list the user's file alone".
    quietly = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "env": dict(environment(), PIP_USER="0"),
    }
    said = subprocess.run(asked, **quietly).stdout
    lines = re.findall(
        r"^(global|install|:env:)[.]([\w-]+)=(.*)$", said.decode("utf-8", "replace"), re.MULTILINE
    )
    order = ("global", "install", ":env:")  # a later one overrides
    variables = {name: value for name, value in environment().items() if not name.startswith("PIP_")}
    for _, name, value in sorted(lines, key=lambda line: order.index(line[0])):
        if name not in PIP_OURS:
            variables["PIP_" + name.upper().replace("-", "_")] = ast.literal_eval(value)
    return dict(variables, PIP_CONFIG_FILE=os.devnull)  # pip must not read the files again


def stamp(python_version):
    """One hash of everything that .venv is made from. When it changes, pip installs again."""
    digest = hashlib.sha256(python_version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def is_ready(facts):
    """Whether .venv has what pyproject.toml and constraints.txt say now, and imports kvlearn from here."""
    path = os.path.join(VENV, "kvlearn-stamp")
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as file:
        return file.read() == stamp(facts[0]) and is_this_folders(facts)


def prepare():
    """Make sure that .venv exists, belongs to this folder, and has what the course needs now."""
    facts = ask_venv()
    problem = venv_problem(facts)
    if problem:
        make_venv(problem)
    elif is_ready(facts):
        return
    elif not has_pip():
        make_venv("the old one has no working pip")
    print("Installing the course and what it stands on (once; some minutes) ...", flush=True)
    package = "-e" + ROOT + "[notebooks,test]"
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", package]
    pip += ["-c", os.path.join(ROOT, "constraints.txt")]
    if not sys.stdout.isatty():
        pip.append("--quiet")  # a log needs no list of what was downloaded; a person waiting does
    if subprocess.call(pip, cwd=ROOT, env=pip_environment()):
        raise Stop(
            "The installation failed; pip's own words are above. Without a network nothing can be "
            "installed; with too little disk space, note that torch for CUDA takes several GB (README.md "
            "says how to have the small one). Your own pip settings apply too: "
            f"{PYTHON} -m pip config list shows them. Then run the same command again."
        )
    facts = ask_venv()
    if not is_this_folders(facts):
        raise Stop(
            f"pip reports that it installed the course, but {VENV} does not import it from {ROOT}. "
            f"Found instead: {facts}. Remove .venv, then run the same command again."
        )
    with open(os.path.join(VENV, "kvlearn-stamp"), "w", encoding="utf-8") as file:
        file.write(stamp(facts[0]))


def fetch_model():
    """Make sure that the real model lies in the user's cache; return whether it does."""
    command = [PYTHON, "-c", "from kvlearn.weights import fetch; fetch()"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE)
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason was given"])[-1]
        print(f"The language model is not here: {last}", file=sys.stderr, flush=True)
    return done.returncode == 0


# --- lab ---


def jupyter_folders(root=ROOT):
    """The value of JUPYTER_CONFIG_PATH: the folders with JupyterLab's settings for this course.

    They are in the repository, so a new .venv uses them too, and the user's own settings stay as they are.
    nbgrader's menus are hidden, unless `kvlearn classroom start` has made this the folder of a class.
    """
    is_class = os.path.exists(os.path.join(root, "classroom", "settings.toml"))
    names = ["everyone"] if is_class else ["everyone", "learners"]
    folders = [os.path.join(root, "course", "jupyter", name) for name in names]
    return os.pathsep.join(folders + [p for p in [os.environ.get("JUPYTER_CONFIG_PATH")] if p])


def lab(arguments):
    fetch_model()
    subprocess.call([PYTHON, os.path.join("course", "laying.py")], cwd=ROOT, env=environment())
    start = START if os.path.exists(os.path.join(ROOT, START)) else "notebooks/00_start_here.ipynb"
    print("The lessons open in the browser. If none opens, copy the address that follows, token included.")
    command = [PYTHON, "-m", "jupyterlab", "--ServerApp.root_dir=" + ROOT]
    command += ["--LabApp.default_url=/lab/tree/" + start]
    command.append("--log-level=WARN")  # else the address is lost between a page of messages
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers
    variables = dict(environment(threads=False), JUPYTER_CONFIG_PATH=jupyter_folders())
    server = subprocess.Popen(command + arguments, cwd=ROOT, env=variables)
    while True:
        try:
            return server.wait()
        except KeyboardInterrupt:  # Jupyter got it as well, and asks whether it is meant: wait for its answer
            continue


# --- test ---


def read_counts(path):
    """Count the (passed, failed, skipped) tests in pytest's JUnit file. A file it cannot read is one failure.

    Counted test by test: pytest's own totals count a test twice if it fails and its cleanup fails too.
    """
    passed = failed = skipped = 0
    try:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            outcomes = {child.tag for child in case}
            if outcomes & {"failure", "error"}:
                failed += 1
            elif "skipped" in outcomes:
                skipped += 1
            else:
                passed += 1
    except (OSError, ElementTree.ParseError):
        return 0, 1, 0
    return passed, failed, skipped


def test(arguments):
    """Lint, then pytest over everything; the last line is the sum, and the exit code agrees with it."""
    fast, everything = "--fast" in arguments, "--all" in arguments
    arguments = [a for a in arguments if a not in ("--fast", "--all")]
    if fast and everything:
        raise Stop("Use --fast or --all, not both.")
    if not fast:
        fetch_model()
    passed = failed = skipped = 0
    for words in (["check"], ["format", "--check"]):
        bad = subprocess.call([PYTHON, "-m", "ruff", *words, "--quiet", "."], cwd=ROOT, env=environment())
        print("ruff", *words, "failed" if bad else "passed", flush=True)
        passed, failed = passed + (not bad), failed + bool(bad)
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, "junit.xml")
        workers = min(max(os.cpu_count() or 1, 2), 4)
        if not fast:
            workers += 2  # the slow tests wait a quarter of their time: for a limit, for a kernel
        command = [PYTHON, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", "--durations=10"]
        command.append("--no-loadscope-reorder")  # keep conftest.py's order: the longest files first
        command += ["--junitxml", junit]
        command += ["tests"] if fast else ["tests", "notebooks", "solutions"]
        if not everything:
            command += ["-m", "not slow and not thorough" if fast else "not thorough"]
        code = subprocess.call(command + arguments, cwd=ROOT, env=environment())
        counts = read_counts(junit)
    if code and not counts[1]:  # pytest itself stopped
        counts = counts[0], 1, counts[2]
    passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


# --- The rest ---


def build(arguments):
    fetch_model()
    return subprocess.call([PYTHON, "course/build.py", *arguments], cwd=ROOT, env=environment())


def python(arguments):
    return subprocess.call([PYTHON, *arguments], env=environment(threads=False))


def bench(arguments):
    fetch_model()
    return subprocess.call([PYTHON, "-m", "benchmarks", *arguments], cwd=ROOT, env=environment(False))


COMMANDS = {"lab": lab, "test": test, "build": build, "python": python, "bench": bench}


def main(arguments):
    problem = version_problem(sys.version_info[:2])
    if problem:
        raise Stop(problem)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.strip())
        return 0
    if arguments[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise Stop(f"There is no command {arguments[0]!r}. There is: {known}.")
    for name in socks_proxies():
        print(
            f"{name} names a SOCKS proxy, which pip and JupyterLab cannot use. They start without it.",
            file=sys.stderr,
            flush=True,
        )
    prepare()
    return COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Stop as reason:
        print(reason, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
