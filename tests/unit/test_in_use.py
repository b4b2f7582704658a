# SPDX-License-Identifier: Apache-2.0
"""scripts/in-use finds each use of hami_hpc that its removal would break, and nothing on a machine without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from node_testbed import ROOT

STAGES = "/usr/libexec/hami-hpc"
SLURM = "etc/slurm/slurm.conf"
PLAIN = "ClusterName=Site\n"
INTO_PROLOGS = f"{PLAIN}Prolog=/etc/slurm/prolog.d/*\n"
IN_PROLOGS = "etc/slurm/prolog.d/00-hami-hpc"
CALLS_PROLOG = f"#!/bin/sh\nexec {STAGES}/prolog\n"
OCI = f'RunTimeRun="{STAGES}/oci-mounts %b && exec runc run --bundle %b %n.%u.%j.%s.%t"\n'


class Machine:
    """A DESTDIR with files of a site: text, or "-> TARGET" for a link."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self.root = root
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                path.symlink_to(text.removeprefix("-> "))
            else:
                path.write_text(text)

    def asks(self, *words: str, **environment: str) -> list[str]:
        """Returns what in-use says, without the machine's root."""
        clean = {"PATH": os.environ["PATH"], "DESTDIR": str(self.root), **environment}
        command = ["sh", str(ROOT / "scripts/in-use"), *words]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False, timeout=60)
        said = done.stderr.replace(f"{self.root}/", "").splitlines()
        assert (done.returncode, done.stdout) == (int(bool(said)), "")
        return said

    def uses(self, *words: str, **environment: str) -> list[str]:
        """Returns what in-use lists, without the sentences before the lists."""
        return [line for line in self.asks(*words, **environment) if not line.endswith(":")]


FOUND = {
    "a link in the site's directory of prologs": (
        {SLURM: INTO_PROLOGS, IN_PROLOGS: "-> /etc/slurm/hami-hpc-prolog", "etc/slurm/hami-hpc-prolog": CALLS_PROLOG},
        [f"{IN_PROLOGS} -> /etc/slurm/hami-hpc-prolog"],
    ),
    "a chain of links, one of them relative, whose end is gone": (
        {
            SLURM: f"{PLAIN}Epilog=epilog.d/*.sh\n",
            "etc/slurm/epilog.d/zz.sh": "-> ../last",
            "etc/slurm/last": f"-> {STAGES}/epilog",
        },
        [f"etc/slurm/epilog.d/zz.sh -> {STAGES}/epilog"],
    ),
    "a link as the site's directory": (
        {
            SLURM: f"{PLAIN}Prolog=stages/prolog\n",
            "usr/libexec/hami-hpc/prolog": "#!/bin/sh\n",
            "etc/slurm/stages": "-> ../../usr/libexec/hami-hpc",
        },
        [f"etc/slurm/stages/prolog -> {STAGES}/prolog"],
    ),
    "a directory as the value, in quotes": (
        {SLURM: f'{PLAIN}prolog = "/etc/slurm/prolog.d"\n', IN_PROLOGS: f"-> {STAGES}/prolog"},
        [f"{IN_PROLOGS} -> {STAGES}/prolog"],
    ),
    "the directory of both, as render has it made": (
        {
            SLURM: f"{PLAIN}Prolog=/etc/slurm/hami-hpc-prolog.d/*\n",
            "etc/slurm/hami-hpc-prolog.d/50-site": "#!/bin/sh\nexec /usr/local/sbin/prolog\n",
            "etc/slurm/hami-hpc-prolog.d/00-hami-hpc": "-> /etc/slurm/hami-hpc-prolog",
        },
        ["etc/slurm/hami-hpc-prolog.d/00-hami-hpc -> /etc/slurm/hami-hpc-prolog"],
    ),
    "a prolog of the site's that calls it": (
        {SLURM: f"{PLAIN}Prolog=/opt/prolog\n", "opt/prolog": f"#!/bin/sh\nx=${{0##*/}}; {STAGES}/prolog\n"},
        [f"opt/prolog:2:x=${{0##*/}}; {STAGES}/prolog"],
    ),
    "a prolog of the site's that runs a directory": (
        {
            SLURM: f"{PLAIN}Prolog=/opt/prolog\n",
            "opt/prolog": "#!/bin/sh\nrun-parts --exit-on-error /opt/parts\n",
            "opt/parts/50-slices": f"-> {STAGES}/prolog",
        },
        [f"opt/parts/50-slices -> {STAGES}/prolog"],
    ),
    "a prolog of the site's that names a directory, and runs each file": (
        {
            SLURM: f"{PLAIN}Prolog=/opt/prolog\n",
            "opt/prolog": '#!/bin/bash\nparts=/opt/prolog.d\nfor part in "$parts"/*; do "$part" || exit 1; done\n',
            "opt/prolog.d/50-slices": CALLS_PROLOG,
        },
        [f"opt/prolog.d/50-slices:2:exec {STAGES}/prolog"],
    ),
    "HealthCheckProgram": (
        {
            SLURM: f"{PLAIN}HealthCheckInterval=3600 HealthCheckProgram=/etc/slurm/health\n",
            "etc/slurm/health": "#!/bin/sh\n# hami-hpc\nwhy=$(hami-hpc baseline check --quick 2>&1 >/dev/null)\n",
        },
        ["etc/slurm/health:3:why=$(hami-hpc baseline check --quick 2>&1 >/dev/null)"],
    ),
    "ResumeProgram": (
        {SLURM: f"{PLAIN}ResumeProgram=/opt/resume\n", "opt/resume": "#!/bin/sh\nhami-hpc reconcile\n"},
        ["opt/resume:2:hami-hpc reconcile"],
    ),
    "TaskPlugin": (
        {SLURM: f"{PLAIN}TaskPlugin=task/affinity,task/cgroup,task/hami_hpc\n"},
        [f"{SLURM}:2:TaskPlugin=task/affinity,task/cgroup,task/hami_hpc"],
    ),
    "a value that continues on the next line": (
        {SLURM: f"{PLAIN}GresTypes=gpu,\\\nvgpu\n"},
        [f"{SLURM}:2:GresTypes=gpu,vgpu"],
    ),
    "gres of nodes, in quotes": (
        {SLURM: f'{PLAIN}NodeName=n1 Gres="gpu:2,vgpu_mem:4096"\n'},
        [f'{SLURM}:2:NodeName=n1 Gres="gpu:2,vgpu_mem:4096"'],
    ),
    "relative includes, in any case, within includes": (
        {
            SLURM: f"{PLAIN}INCLUDE conf.d/a.conf # hami\n",
            "etc/slurm/conf.d/a.conf": "include b.conf\ninclude conf.d/c.conf\n",
            "etc/slurm/conf.d/b.conf": "# vgpu\n",
            "etc/slurm/b.conf": "GresTypes=gpu,vgpu\n",
            "etc/slurm/conf.d/c.conf": f"Include a.conf\nProlog={STAGES}/prolog\n",
        },
        ["etc/slurm/b.conf:1:GresTypes=gpu,vgpu", f"etc/slurm/conf.d/c.conf:2:Prolog={STAGES}/prolog"],
    ),
    "an include by a pattern, and one with the cluster's name": (
        {
            SLURM: f"{PLAIN}Include /srv/conf.d/*.conf\nInclude nodes.%c\n",
            "srv/conf.d/gpu.conf": "GresTypes=gpu,vgpu\n",
            "etc/slurm/nodes.site": "AccountingStorageTRES=gres/gpu,gres/vgpu\n",
        },
        [
            "srv/conf.d/gpu.conf:1:GresTypes=gpu,vgpu",
            "etc/slurm/nodes.site:1:AccountingStorageTRES=gres/gpu,gres/vgpu",
        ],
    ),
    "includes of gres.conf": (
        {
            SLURM: PLAIN,
            "etc/slurm/gres.conf": "include hami-hpc-gres.conf\ninclude site-gres.conf\n",
            "etc/slurm/hami-hpc-gres.conf": "NodeName=n1 Name=vgpu Count=4\n",
            "etc/slurm/site-gres.conf": "NodeName=n1 Name=vgpu_mem Count=4\n",
        },
        [
            "etc/slurm/gres.conf:1:include hami-hpc-gres.conf",
            "etc/slurm/site-gres.conf:1:NodeName=n1 Name=vgpu_mem Count=4",
        ],
    ),
    "SPANK's line in a plugstack.conf elsewhere, and its includes": (
        {
            SLURM: f"{PLAIN}PlugStackConfig=/srv/plugstack.conf\n",
            "srv/plugstack.conf": "include more/*\n",
            "srv/more/gpu": "required spank_hami_hpc.so\n",
        },
        ["srv/more/gpu:1:required spank_hami_hpc.so"],
    ),
    "a directory of plugins that has no others": (
        {
            SLURM: f"{PLAIN}PluginDir=/usr/lib/slurm:/opt/plugins\n",
            "usr/lib/slurm/select_cons_tres.so": "",
            "opt/plugins/spank_hami_hpc.so": "",
        },
        [f"{SLURM}:2:PluginDir=/usr/lib/slurm:/opt/plugins"],
    ),
    "calls of a filter that Slurm runs": (
        {
            SLURM: f"{PLAIN}JobSubmitPlugins=all_partitions,lua\n",
            "etc/slurm/job_submit.lua": '--[[ hami_hpc\nhami_hpc ]]\nlocal a = 1 - 2 hami = require("hami_hpc")\n',
        },
        ['etc/slurm/job_submit.lua:3:local a = 1 - 2 hami = require("hami_hpc")'],
    ),
    "Slurm's containers": ({SLURM: PLAIN, "etc/slurm/oci.conf": OCI}, [f"etc/slurm/oci.conf:1:{OCI.strip()}"]),
    "slurm.conf elsewhere, by an option of slurmd": (
        {"etc/default/slurmd": "SLURMD_OPTIONS='-f /srv/slurm.conf'\n", "srv/slurm.conf": "GresTypes=vgpu\n"},
        ["srv/slurm.conf:1:GresTypes=vgpu"],
    ),
    "slurm.conf elsewhere, by the environment of its unit": (
        {
            "etc/systemd/system/slurmctld.service.d/site.conf": "[Service]\nEnvironment=SLURM_CONF=/srv/slurm.conf\n",
            "srv/slurm.conf": "GresTypes=vgpu\n",
        },
        ["srv/slurm.conf:1:GresTypes=vgpu"],
    ),
    "slurmd's copy on a configless node": (
        {"run/slurm/conf/slurm.conf": PLAIN, "run/slurm/conf/gres.conf": "Name=vgpu Count=4\n"},
        ["run/slurm/conf/gres.conf:1:Name=vgpu Count=4"],
    ),
    "what slurmd's unit requires": (
        {
            SLURM: PLAIN,
            "etc/systemd/system/slurmd.service.d/gpu.conf": "[Unit]\n; hami-hpc\nRequires=hami-hpc-reconcile.service\n",
        },
        ["etc/systemd/system/slurmd.service.d/gpu.conf:3:Requires=hami-hpc-reconcile.service"],
    ),
    "PAM": (
        {
            "etc/pam.d/sshd": "# pam_hami_hpc.so\nsession\trequired /usr/lib/hami-hpc/pam_hami_hpc.so\n",
            "etc/pam.d/sshd.bak": "session required /usr/lib/hami-hpc/pam_hami_hpc.so\n",
        },
        ["etc/pam.d/sshd:2:session required /usr/lib/hami-hpc/pam_hami_hpc.so"],
    ),
}
IN_CONTAINERS = {
    "Apptainer": (
        {
            "etc/apptainer/apptainer.conf": (
                "# bind path = /run/hami-hpc/self\nbind path = /run/hami-hpc/self\n"
                "bind path = /usr/lib/hami-hpc/libhami-hpc.so\nbind path = /etc/localtime\n"
            ),
            "usr/local/etc/singularity/singularity.conf": "bind path = /usr/lib/hami-hpc/libhami-hpc.so\n",
        },
        [
            "etc/apptainer/apptainer.conf:2:bind path = /run/hami-hpc/self",
            "etc/apptainer/apptainer.conf:3:bind path = /usr/lib/hami-hpc/libhami-hpc.so",
            "usr/local/etc/singularity/singularity.conf:1:bind path = /usr/lib/hami-hpc/libhami-hpc.so",
        ],
    ),
    "enroot": (
        {
            "etc/enroot/hooks.d/50-hami-hpc.sh": "-> /usr/share/hami-hpc/enroot/50-hami-hpc.sh",
            "etc/enroot/hooks.d/60-slices.sh": "-> /usr/share/hami-hpc/enroot/50-hami-hpc.sh",
            "etc/enroot/hooks.d/70-site.sh": "#!/bin/sh\n# hami-hpc\n",
            "etc/enroot/mounts.d/gpu.fstab": "/run/hami-hpc/self /run/hami-hpc/self none x-create=dir,bind\n",
        },
        [
            "etc/enroot/hooks.d/50-hami-hpc.sh -> /usr/share/hami-hpc/enroot/50-hami-hpc.sh",
            "etc/enroot/hooks.d/60-slices.sh -> /usr/share/hami-hpc/enroot/50-hami-hpc.sh",
            "etc/enroot/mounts.d/gpu.fstab:1:/run/hami-hpc/self /run/hami-hpc/self none x-create=dir,bind",
        ],
    ),
    "Podman": (
        {
            "etc/containers/containers.conf": '[engine]\n#hooks_dir = ["/usr/share/hami-hpc/podman"]\n',
            "etc/containers/containers.conf.d/gpu.conf": (
                '[engine]\nhooks_dir = [\n  "/usr/share/hami-hpc/podman",\n]\n'
            ),
            "etc/containers/oci/hooks.d/gpu.json": "-> /usr/share/hami-hpc/podman/hami-hpc.json",
        },
        [
            'etc/containers/containers.conf.d/gpu.conf:3:  "/usr/share/hami-hpc/podman",',
            "etc/containers/oci/hooks.d/gpu.json -> /usr/share/hami-hpc/podman/hami-hpc.json",
        ],
    ),
}
# Files that name hami_hpc, or something like it, and need none of its files.
UNUSED = {
    "comments": {SLURM: f"{PLAIN}  # GresTypes=vgpu\nSlurmdDebug=info # hami_hpc\n", "etc/slurm/oci.conf": f"#{OCI}"},
    "names of the site's own": {
        SLURM: (
            f"{PLAIN}NodeName=vgpu[01-04] Gres=gpu:vgpu:4 Feature=vgpu\nPartitionName=vgpu Nodes=vgpu[01-04]\n"
            "NodeSet=slices Feature=vgpu_share\nAccountingStorageHost=vgpu\n"
        )
    },
    "files that render wrote and nothing includes": {
        SLURM: PLAIN,
        "etc/slurm/slurm-hami-hpc.conf": "GresTypes=vgpu\n",
        "etc/slurm/hami-hpc-gres.conf": "Name=vgpu\n",
        "etc/slurm/hami-hpc-prolog": CALLS_PROLOG,
        "etc/slurm/plugstack.conf": "include plugstack.conf.d/site.conf\n",
        "etc/slurm/plugstack.conf.d/hami-hpc.conf": "required spank_hami_hpc.so\n",
    },
    "filters that Slurm does not run": {SLURM: PLAIN, "etc/slurm/job_submit.lua": 'require("hami_hpc")\n'},
    "the directory of both without its link": {
        SLURM: f"{PLAIN}Prolog=/etc/slurm/hami-hpc-prolog.d/*\n",
        "etc/slurm/hami-hpc-prolog.d/50-site": "#!/bin/sh\n# hami_hpc's is gone\nexec /usr/local/sbin/prolog\n",
    },
    "a link to nothing, and links in a circle": {
        SLURM: INTO_PROLOGS,
        IN_PROLOGS: "-> /dev/null",
        "etc/slurm/prolog.d/a": "-> b",
        "etc/slurm/prolog.d/b": "-> a",
        "etc/slurm/prolog.d/50-site": "-> /usr/local/sbin/prolog",
    },
    "includes that are missing, and one of itself": {
        SLURM: f"{PLAIN}include none.conf\ninclude ./slurm.conf\ninclude no/*.conf\nProlog=/none/*\n"
    },
    "a log of the site's prolog": {
        SLURM: f"{PLAIN}Prolog=/opt/prolog\n",
        "opt/prolog": "#!/bin/sh\necho begins >>/var/log/prolog\nrm -f /var/log/prolog-*\n",
        "var/log/prolog": "hami_hpc\n",
        "var/log/prolog-1": "hami_hpc\n",
    },
    "plugins beside Slurm's": {
        SLURM: f"{PLAIN}PluginDir=/usr/lib/slurm\n",
        "usr/lib/slurm/select_cons_tres.so": "",
        "usr/lib/slurm/spank_hami_hpc.so": "",
    },
    "a hook that enroot does not run": {
        "etc/enroot/hooks.d/50-hami-hpc.sh.off": "-> /usr/share/hami-hpc/enroot/50-hami-hpc.sh"
    },
    "no file at all": {},
}


@pytest.mark.parametrize("name", FOUND)
def test_finds_the_uses_in_slurms_files_and_links(tmp_path: Path, name: str) -> None:
    files, uses = FOUND[name]
    machine = Machine(tmp_path, files)
    assert machine.uses("lines") == uses
    assert machine.asks("lines")[0].startswith("Take these lines out, and remove these links (->)")


@pytest.mark.parametrize("name", IN_CONTAINERS)
def test_finds_the_uses_of_container_runtimes(tmp_path: Path, name: str) -> None:
    files, uses = IN_CONTAINERS[name]
    machine = Machine(tmp_path, files)
    assert machine.uses("containers") == uses
    assert "or containers may not start" in machine.asks()[0]
    assert machine.uses("lines") == []


@pytest.mark.parametrize("name", UNUSED)
def test_finds_nothing_where_nothing_needs_a_file(tmp_path: Path, name: str) -> None:
    assert Machine(tmp_path, UNUSED[name]).asks() == []


def test_slurm_conf_by_the_environment_counts_beside_the_usual_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {SLURM: PLAIN, "srv/s.conf": "include a\n", "srv/a": "GresTypes=vgpu\n"})
    assert machine.uses(SLURM_CONF="/srv/s.conf") == ["srv/a:1:GresTypes=vgpu"]
    assert machine.uses(SLURM_CONF="srv/s.conf") == []


def test_other_places_are_named_by_the_variables_of_make(tmp_path: Path) -> None:
    places = {"SYSCONFDIR": "/opt/s/etc", "LIBDIR": "/opt/s/lib", "LIBEXECDIR": "/opt/s/bin", "DATADIR": "/opt/s/share"}
    files = {
        "opt/s/etc/slurm/slurm.conf": "Prolog=/opt/s/bin/prolog\nEpilog=/opt/s/bin/epilog-of-the-site\n",
        SLURM: INTO_PROLOGS,
        IN_PROLOGS: "-> /opt/s/bin/prolog",
        "etc/slurm/prolog.d/50-site": "-> /opt/s/bin/prolog-of-the-site",
        "etc/containers/containers.conf": 'hooks_dir = ["/opt/s/share/podman"]\n',
        "etc/systemd/system/timers.target.wants/hami-hpc-ingest.timer": "-> /opt/s/units/hami-hpc-ingest.timer",
    }
    assert Machine(tmp_path, files).uses(**places) == [
        "opt/s/etc/slurm/slurm.conf:1:Prolog=/opt/s/bin/prolog",
        f"{IN_PROLOGS} -> /opt/s/bin/prolog",
        'etc/containers/containers.conf:1:hooks_dir = ["/opt/s/share/podman"]',
        "etc/systemd/system/timers.target.wants/hami-hpc-ingest.timer",
    ]


def test_nothing_that_the_files_name_is_run_or_expanded(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"{PLAIN}include $(touch {made})\nProlog=`touch {made}`;$(touch {made})\nClusterName=a|e touch {made}&\n"
    machine = Machine(tmp_path / "root", {SLURM: f"{text}include b.%c\nPlugStackConfig=$(touch {made})\n"})
    assert machine.asks() == []
    assert not made.exists()


def test_files_in_a_directory_that_any_user_can_write_and_pipes_are_not_read(tmp_path: Path) -> None:
    script = "#!/bin/sh\nrm -f /opt/tmp/*.lock\n"
    files = {SLURM: f"{PLAIN}Prolog=/opt/prolog\n", "opt/prolog": script, "opt/tmp/x.lock": "hami_hpc\n"}
    machine = Machine(tmp_path, files)
    (tmp_path / "opt/tmp/x.lock").chmod(0o755)
    assert machine.uses() == ["opt/tmp/x.lock:1:hami_hpc"]
    (tmp_path / "opt/tmp").chmod(0o1777)
    os.mkfifo(tmp_path / "etc/slurm/gres.conf")
    (tmp_path / "etc/pam.d").mkdir()
    (tmp_path / "etc/pam.d/sshd").write_bytes(b"pam_hami_hpc\0")
    assert machine.asks() == []


@pytest.mark.parametrize(("part", "refused"), [("node", True), ("slurm", False)])
def test_the_package_of_the_node_is_not_removed_while_containers_need_it(
    tmp_path: Path, part: str, refused: bool
) -> None:
    hook = "etc/enroot/hooks.d/50-hami-hpc.sh"
    machine = Machine(tmp_path, {hook: "-> /usr/share/hami-hpc/enroot/50-hami-hpc.sh"})
    in_use = tmp_path / "usr/libexec/hami-hpc/in-use"
    in_use.parent.mkdir(parents=True)
    in_use.write_text((ROOT / "scripts/in-use").read_text())
    in_use.chmod(0o755)
    script = (ROOT / f"scripts/hami_packages/maintainer/{part}.prerm").read_text().replace("@LIBEXECDIR@", STAGES)
    environment = {"PATH": os.environ["PATH"], "DPKG_ROOT": str(machine.root)}
    command = ["sh", "-c", script, "prerm", "remove"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == int(refused)
    assert (f"{hook} -> /usr/share" in done.stderr) == refused
    forced = subprocess.run(command, env={**environment, "HAMI_HPC_FORCE": "1"}, capture_output=True, check=False)
    assert forced.returncode == 0
