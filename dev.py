"""The one door to the course. Needs Python 3.11, 3.12 or 3.13 and nothing else.

    python3 dev.py lab            prepare everything, then open the lessons in JupyterLab
    python3 dev.py test [--fast]  prepare everything, then run every check (--fast: the inner loop)
    python3 dev.py build [NAMES]  make the notebooks again from course/ (--force, --check)
    python3 dev.py python ARGS    run the course's own Python: a script, -m module, -c "..."
    python3 dev.py bench [ARGS]   measure this machine: benchmarks/

The first command takes some minutes: it makes `.venv`, installs what constraints.txt pins, and fetches
the language model. Later ones start in seconds. Nothing outside this folder is changed, but for the
model in the user's cache. On Windows, write `py dev.py` for `python3 dev.py`.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
VERSIONS = ((3, 11), (3, 12), (3, 13))
START = "notebooks/00_start_here.ipynb"


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


def stamp(python_version):
    """What the environment is made from, as one hash: when it changes, the environment is renewed."""
    digest = hashlib.sha256(python_version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def venv_version():
    """The version of the Python in .venv ("3.11.7"), or None where there is none that runs."""
    try:
        command = [PYTHON, "-c", "import platform; print(platform.python_version())"]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def make_venv():
    """Make .venv; where Python comes without ensurepip (Debian's), let its own pip fill it."""
    print("Making .venv ...", flush=True)
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    without = [] if has_ensurepip else ["--without-pip"]
    made = subprocess.call([sys.executable, "-m", "venv", "--clear", *without, VENV])
    if not made and not has_ensurepip:
        pip = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "pip"]
        made = subprocess.call(pip)
    if made:
        raise Stop(
            "Python could not make the environment .venv; its own words are above. "
            "On Debian or Ubuntu this helps: sudo apt install python3-venv. Then run this again."
        )


def prepare():
    """Make sure that .venv is there and holds what pyproject.toml and constraints.txt say now."""
    version = venv_version()
    if version is None or version_problem(tuple(int(n) for n in version.split(".")[:2])):
        make_venv()
        version = venv_version()
    path = os.path.join(VENV, "kvlearn-stamp")
    wanted = stamp(version)
    if os.path.exists(path):
        with open(path) as file:
            if file.read() == wanted:
                return
    print("Installing the course and what it stands on (once; some minutes) ...", flush=True)
    package = "-e" + ROOT + "[notebooks,test]"
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", package]
    pip += ["-c", os.path.join(ROOT, "constraints.txt")]
    if not sys.stdout.isatty():
        pip.append("--quiet")  # a log needs no list of what was downloaded; a person waiting does
    if subprocess.call(pip, cwd=ROOT):
        raise Stop(
            "The installation failed; pip's own words are above. Without a network nothing can be "
            "installed; with too little disk space, note that torch for CUDA takes several GB (README.md "
            "says how to have the small one). Then run the same command again."
        )
    with open(path, "w") as file:
        file.write(wanted)


def fetch_model():
    """Make sure that the real model lies in the user's cache; return whether it does."""
    command = [PYTHON, "-c", "from kvlearn.weights import fetch; fetch()"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        print(f"The language model is not here: {last}", file=sys.stderr, flush=True)
    return done.returncode == 0


def environment(threads=True):
    """The variables for what is started: this environment's kernel first, and one thread a process."""
    variables = dict(os.environ, JUPYTER_PREFER_ENV_PATH="1", VIRTUAL_ENV=VENV)
    variables["PATH"] = os.path.dirname(PYTHON) + os.pathsep + variables.get("PATH", "")
    if threads:
        variables.setdefault("OMP_NUM_THREADS", "1")
    return variables


# --- lab ---


def lay_exercises(root=ROOT):
    """Copy each exercise into work/ where it is not yet; return lines that say what was done.

    A file in work/ is the learner's: it is opened for writing only where none was ("x"), so nothing
    can be overwritten. work/.laid.json remembers which edition was laid, to tell what has changed.
    """
    work, lines = os.path.join(root, "work"), []
    os.makedirs(work, exist_ok=True)
    record = os.path.join(work, ".laid.json")
    laid = {}
    if os.path.exists(record):
        with open(record, encoding="utf-8") as file:
            laid = json.load(file)
    source = os.path.join(root, "exercises")
    for name in sorted(os.listdir(source)) if os.path.isdir(source) else []:
        original = os.path.join(source, name, name + ".ipynb")
        if not os.path.exists(original):
            continue
        with open(original, encoding="utf-8") as file:
            text = file.read()
        edition = hashlib.sha256(text.encode()).hexdigest()
        copy = f"work/{name}/{name}.ipynb"
        os.makedirs(os.path.join(work, name), exist_ok=True)
        try:
            with open(os.path.join(root, copy), "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            if laid.get(name, edition) != edition:
                lines.append(
                    f"{copy} stays as it is; exercises/{name} has changed since you got it. "
                    "To have the new one, rename yours and start again."
                )
            continue
        laid[name] = edition
        lines.append(f"New for you: {copy}")
    with open(record, "w", encoding="utf-8") as file:
        json.dump(laid, file, indent=1, sort_keys=True)
    return lines


def lab(arguments):
    fetch_model()
    for line in lay_exercises():
        print(line)
    print("The lessons open in the browser. If none opens, copy the address with the token from below.")
    command = [PYTHON, "-m", "jupyterlab", "--ServerApp.root_dir=" + ROOT]
    command += ["--LabApp.default_url=/lab/tree/" + START]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers
    server = subprocess.Popen(command + arguments, cwd=ROOT, env=environment(threads=False))
    while True:
        try:
            return server.wait()
        except KeyboardInterrupt:  # Jupyter got it as well, and asks whether it is meant: wait for its answer
            continue


# --- test ---


def read_counts(path):
    """(passed, failed, skipped) of pytest's JUnit file; one failure where there is none to read."""
    total = failed = skipped = 0
    try:
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            total += int(suite.get("tests"))
            failed += int(suite.get("failures")) + int(suite.get("errors"))
            skipped += int(suite.get("skipped"))
    except (OSError, ElementTree.ParseError):
        return 0, 1, 0
    return total - failed - skipped, failed, skipped


def test(arguments):
    """Lint, then pytest over everything; the last line is the sum, and the exit code agrees with it."""
    fast = "--fast" in arguments
    arguments = [a for a in arguments if a != "--fast"]
    if not fast:
        fetch_model()
    passed = failed = skipped = 0
    for words in (["check"], ["format", "--check"]):
        bad = subprocess.call([PYTHON, "-m", "ruff", *words, "--quiet", "."], cwd=ROOT)
        print("ruff", *words, "failed" if bad else "passed", flush=True)
        passed, failed = passed + (not bad), failed + bool(bad)
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, "junit.xml")
        command = [PYTHON, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--durations=10"]
        command += ["--junitxml", junit]
        command += ["tests", "-m", "not slow"] if fast else ["tests", "notebooks", "solutions"]
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
        print(__doc__.strip())
        return 0
    if arguments[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise Stop(f"There is no command {arguments[0]!r}. There is: {known}.")
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
