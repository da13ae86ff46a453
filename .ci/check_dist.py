"""Checks the built packages in a folder: wheel and sdist hold all modules and data, and the wheel finds its presets."""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "accel_rl"
DATA = (
    *("py.typed", "presets/*.yaml", "analysis/*.csv", "emulator/*.ini", "emulator/*.csv"),
    *("report/*.html", "report/*.css", "report/*.js", "watch/*.html", "watch/*.js"),
)
LIST_PRESETS = "import accel_rl.config.presets as p; print(p.__file__, *p.preset_names(), sep='\\n')"


def main(folder: Path) -> None:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    expected = {f"accel_rl/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")}
    data = [path for pattern in DATA for path in PACKAGE.glob(pattern)]
    expected |= {f"accel_rl/{path.relative_to(PACKAGE)}" for path in data}
    with zipfile.ZipFile(wheel) as file:
        check(wheel, expected, {name for name in file.namelist() if ".dist-info/" not in name})
        presets = listed_presets(file)
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
        check(sdist, expected, {name for name in names if name in expected})
    if missing := {path.stem for path in PACKAGE.glob("presets/*.yaml")} - {*presets}:
        sys.exit(f"{wheel.name} does not list these presets: {sorted(missing)}")
    print(f"{wheel.name}: {len(expected)} files, {len(presets)} presets")


def check(archive: Path, expected: set[str], found: set[str]) -> None:
    """Exits with an error if an archive's files are not those of the package."""
    if expected != found:
        sys.exit(f"{archive.name}: missing {sorted(expected - found)}; too many {sorted(found - expected)}")


def listed_presets(wheel: zipfile.ZipFile) -> list[str]:
    """Returns the presets that the wheel's own code finds, unpacked where the repository is out of reach."""
    with tempfile.TemporaryDirectory() as folder:
        wheel.extractall(folder)
        code = f"import sys; sys.path.insert(0, {folder!r}); {LIST_PRESETS}"
        command = [sys.executable, "-P", "-c", code]
        module, *presets = subprocess.run(
            command, cwd=folder, check=True, text=True, capture_output=True
        ).stdout.split()
        if not module.startswith(folder):
            sys.exit(f"{module} was imported in place of the wheel's")
    return presets


if __name__ == "__main__":
    main(Path(sys.argv[1]))
