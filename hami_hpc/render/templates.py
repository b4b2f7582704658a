# SPDX-License-Identifier: Apache-2.0
"""The templates of render: a site's own, in gres-conf/ beside the settings, before those that are installed.

An upgrade replaces the installed ones and touches none of the site's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import jinja2

from hami_hpc import places
from hami_hpc.errors import NodeError
from hami_hpc.render import on_disk

FOLDER = "gres-conf"
SUFFIX = ".j2"


class Templates:
    """The templates for the settings at `settings_path`. Raises NodeError as `_own_files` does."""

    def __init__(self, settings_path: str) -> None:
        self.folder = Path(settings_path).with_name(FOLDER)
        if self.folder.resolve() == places.TEMPLATES.resolve():
            own: list[Path] = []
        else:
            own = _own_files(self.folder)
        self.used = {path.name for path in own}
        # No escaping, because the output is not HTML. StrictUndefined: a name without a value is an error, not "".
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([*([self.folder] if own else []), places.TEMPLATES]),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )

    def render(self, name: str, values: Mapping[str, object]) -> str:
        """Fills the template `name`. Raises NodeError where there is none, and for what a site's own has wrong."""
        file = f"{name}{SUFFIX}"
        if not (places.TEMPLATES / file).exists():
            raise NodeError(f"{places.TEMPLATES}/{file} does not exist. Install hami_hpc again (make install)")
        try:
            return self._environment.get_template(file).render(values)
        except (jinja2.TemplateError, UnicodeDecodeError) as error:
            if file not in self.used:
                raise
            line = f" line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise NodeError(
                f"{self.folder / file}{line}: {error}. Correct it, or move it away: {places.TEMPLATES / file} is "
                "the template that is installed"
            ) from error

    def remarks(self) -> list[str]:
        """Returns a line for each of the site's own templates, and for each file that is none of render's."""
        lines = []
        for name in sorted(self.used):
            path = self.folder / name
            if (places.TEMPLATES / name).exists():
                lines.append(f"{path} is used instead of {places.TEMPLATES / name}")
            else:
                lines.append(f"{path} has the name of no template of render's, and is used for nothing")
        return lines


def _own_files(folder: Path) -> list[Path]:
    """Returns the site's own templates; none without the directory.

    A template is a program that render runs, mostly as root. Raises NodeError where another user can write the
    directory or a file in it, or replace them, and when they cannot be read.
    """
    try:
        files = sorted(folder.iterdir())
        templates = [path for path in files if path.name.endswith(SUFFIX)]
        for path in (folder, *templates):
            status = path.stat()
            is_file = stat.S_ISREG(status.st_mode) or path == folder
            if not is_file or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                raise NodeError(
                    f"{path} is not a file that only root can write (uid {status.st_uid}, mode "
                    f"{stat.S_IMODE(status.st_mode):04o}), and render runs what it says. Run: chown root {path}; "
                    f"chmod go-w {path}"
                )
        above = on_disk.open_to_others(folder) if templates and os.geteuid() == 0 else None
        if above is not None:
            raise NodeError(
                f"{above} can be written by others than root, and render runs the templates in {folder}. Run: "
                f"chown root {above}; chmod go-w {above}"
            )
    except (FileNotFoundError, NotADirectoryError) as error:
        if not os.path.lexists(folder):
            return []
        raise NodeError(f"{error.filename} cannot be read ({error.strerror}): it is for templates of render") from error
    except OSError as error:
        raise NodeError(f"{error.filename} cannot be read ({error.strerror})") from error
    return templates
