# SPDX-License-Identifier: Apache-2.0
"""Makes what `hami-hpc render` writes and prints for one node. Reads the site's files, writes none."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hami_hpc import places
from hami_hpc.contract import constants as c
from hami_hpc.core import qos
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.mig_choice import MIG
from hami_hpc.core.node_inventory import Near
from hami_hpc.core.site import Site
from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings
from hami_hpc.render import filters, gathering, merging, names, near, on_disk, placement_lines, tenants
from hami_hpc.render.inputs import FRAGMENT, GRES, REASONS, Inputs
from hami_hpc.render.marks import block, blocks, composed, is_ours
from hami_hpc.render.merging import Merge
from hami_hpc.render.node_lines import cpus_of
from hami_hpc.render.offer import NodeOffer, make_offer, node_modes, tracked_tres
from hami_hpc.render.rendered import WRAPPERS, Rendered, Target
from hami_hpc.render.spank_paths import pam_module, spank_paths
from hami_hpc.slurm import plugstack
from hami_hpc.slurm.files import ConfFile, calls_one_of, scripts_of
from hami_hpc.slurm.lines import Setting, parse_line, settings_of

SPANK = "plugstack.conf.d/hami-hpc.conf"
PAM = "hami-hpc-pam.conf"  # a line for sshd, to be copied
UNITS = (
    "hami-hpc-reconcile.service",
    "hami-hpc-reconcile.timer",
    "hami-hpc-agent.service",
    "hami-hpc-metrics.service",
)
QOS = "hami-hpc-qos.sh"


def render_nodes(settings: Settings, nodes: Sequence[tuple[tuple[Gpu, ...], Target]]) -> Rendered:
    """Renders the files of several nodes of one cluster, which differ in these alone, and adds the nodes that the files
    have already."""
    whole, by_file = Rendered(), dict[str, dict[str, str]]()
    inputs = Inputs(settings, nodes[0][1].directory)
    own_remarks, merges = list[tuple[str, str]](), list[tuple[str, Merge]]()
    for gpus, target in nodes:
        renderer = Renderer(inputs, gpus, target)
        one = renderer.render()
        whole.files |= one.files
        for name, text in one.blocks.items():
            if name not in by_file:
                by_file[name] = renderer.earlier_blocks(name)
            by_file[name][target.node] = text
        whole.heads |= one.heads
        merges += [(target.node, merge) for merge in one.merges]
        own_remarks += [(target.node, remark) for remark in one.own_remarks]
        whole.remarks += [remark for remark in one.remarks if remark not in whole.remarks]
    whole.merges = gathering.merges(merges)
    whole.remarks = [*gathering.sentences(own_remarks), *whole.remarks]
    for name, by_node in by_file.items():
        whole.add(name, composed(whole.heads[name], {node: text for node, text in by_node.items() if text}))
    return whole


def check_nodes(settings: Settings, nodes: Sequence[tuple[tuple[Gpu, ...], Target]]) -> None:
    """Raises NodeError for settings that cannot be, and where GPUs of nodes and settings disagree, with all of these
    nodes."""
    inputs, wrong = Inputs(settings, nodes[0][1].directory), list[tuple[str, str]]()
    for gpus, target in nodes:
        try:
            Renderer(inputs, gpus, target)
        except NodeError as error:
            if len(nodes) == 1:
                raise
            wrong.append((target.node, f"{merging.NODES}: {error}"))
    if wrong:
        raise NodeError("; ".join(gathering.sentences(wrong)))


class Renderer:
    """Renders the files of one node, but its block in those that have one for each node. Raises NodeError when GPUs and
    settings disagree or a file cannot be read."""

    def __init__(self, inputs: Inputs, gpus: tuple[Gpu, ...], target: Target) -> None:
        settings, site = inputs.settings, inputs.site
        self.inputs, self.settings, self.target = inputs, settings, target
        self.out = Rendered()
        self.templates = inputs.templates
        self.out.remarks += self.templates.remarks()
        names.check_node("--node", target.node)
        for option, path in (("--output", target.directory), ("--config", settings.path), ("--device", target.device)):
            names.check_path(option, path)
        for option, path in (("--plugin-dir", target.plugin_dir), ("--spank", target.spank)):
            names.check_path(option, path)
        for option, text in (("--prolog", target.prolog), ("--epilog", target.epilog)):
            names.check_path(option, text or "")
        names.check_parameters("--node-parameters", target.node_parameters)
        self.placement = inputs.placement
        modes = node_modes(settings.modes, settings.mig_nodes, target.node)
        counts = {name: sum(name == other for other, _ in target.static) for name, _ in target.static}
        self.offer: NodeOffer = make_offer(site, gpus, modes, counts, target.has_typed_shards)
        self._remark_mig(site)
        self._remark_places(site)
        self._remark_memory(gpus)
        self.model = self.offer.lines[0].model
        self.slurm_conf, self.site_settings = inputs.slurm_conf, inputs.site_settings
        self.values: dict[str, object] = {
            "settings": settings,
            "offer": self.offer,
            "classes": list(settings.classes),
            "site_table": inputs.site_table,
            "command": f"{sys.executable} -I -m hami_hpc.cli",
            "node": target.node,
            "device": target.device,
            "spank": target.spank,
            "paths": spank_paths(settings.path),
            "pam": pam_module(settings.interposer),
            "static": target.static,
        }

    def _remark_mig(self, site: Site) -> None:
        """Adds remarks on settings that offer MIG and cannot give it."""
        if MIG not in site.modes:
            return
        if not site.mig:
            self.out.remarks.append(
                f"modes offers mig, and no [gpu_models.*] of {self.settings.path} has mig_profiles: every request for "
                "MIG is refused. `hami-hpc mig profiles` on a node with such a GPU prints what to write there"
            )
        if len(site.modes) > 1 and not self.settings.mig_nodes:
            self.out.remarks.append(
                "modes offers mig beside others, and mig_nodes does not say which nodes have GPUs in MIG mode: every "
                "node offers every mode, and a job that meets a GPU of the other kind does not start there"
            )

    def _remark_places(self, site: Site) -> None:
        """Adds a remark on a node with fewer GPUs than jobs may have slices, of whose size job_submit knows nothing."""
        gpus = sum(line.count for line in self.offer.lines)
        unknown = [name for name in site.partitions if name not in site.partition_gpus]
        if gpus < site.slices_max and unknown:
            self.out.own_remarks.append(
                f"{merging.NODES} has {gpus} GPU(s) and slices_max is {site.slices_max}. Where no node of a partition "
                f"({', '.join(unknown)}) has more, write gpus = {gpus} in its [partitions.*]: jobs could ask for GPUs "
                "that no node there has"
            )

    def _remark_memory(self, gpus: tuple[Gpu, ...]) -> None:
        """Adds a remark on GPUs with less memory than the settings give their model, as two sizes of one product."""
        smaller = [gpu for gpu in gpus if gpu.total_mib < self.settings.gpu_models[gpu.model]]
        if smaller:
            least = min(smaller, key=lambda gpu: gpu.total_mib)
            self.out.own_remarks.append(
                f"GPUs of {merging.NODES} have {least.total_mib} MiB, and total_mib of {least.model} in "
                f"{self.settings.path} is {self.settings.gpu_models[least.model]}: a job that asks for more than they "
                f"have takes its node out of service. Write total_mib = {least.total_mib}, or give GPUs of this size a "
                "model of their own (hami-hpc inventory shows them), then render again"
            )

    def render(self) -> Rendered:
        """Returns everything, in the order in which it is printed."""
        self.out.add("hami_hpc_site.lua", self.templates.render("hami_hpc_site.lua", self.values))
        self._stages()
        self._slurm_conf()
        self._gres()
        self._tenants()
        self._qos()
        self._spank()
        if self.slurm_conf.exists:
            self._filters()
        for unit in UNITS:
            self.out.add(unit, self.templates.render(unit, self.values))
        if self.target.cgroup:
            self._cgroup()
        return self.out

    def _stages(self) -> None:
        for key, name in WRAPPERS.items():
            if self.target.stage(key) == self.target.path(name):
                stage = key.lower()
                script = places.STAGES / stage
                if not script.exists():
                    raise NodeError(f"{script} does not exist. Install hami_hpc again (make install)")
                self.out.add(name, self.templates.render("stage.sh", self.values | {"stage": key, "script": script}))
        writable = on_disk.open_to_others(Path(self.target.directory))
        if os.geteuid() == 0 and writable is not None:
            self.out.remarks.append(
                f"{writable} can be written by others than root, and slurmd runs Prolog and Epilog from there as root: "
                "who can write there is root on all nodes"
            )

    def _slurm_conf(self) -> None:
        fixed = f",{c.GRES_FIXED}" if self.offer.fixed else ""
        wanted = {
            "GresTypes": f"gpu,{c.GRES_SHARD},{c.GRES_CLASS},{c.GRES_MEM},{c.GRES_CORES},{c.GRES_SLO}{fixed}",
            "SelectType": "select/cons_tres",
            "JobSubmitPlugins": "lua",
            "CliFilterPlugins": self._client_plugin(),
            "PrologFlags": "Alloc",
        }
        if self._may_have_slurmdbd():
            wanted["AccountingStorageTRES"] = tracked_tres(self.settings.gpu_models, self.settings.classes)
        else:
            self.out.remarks.append(merging.NO_SLURMDBD)
        if self.target.plugin_dir:
            wanted["PluginDir"] = self.target.plugin_dir
        keys, merges = merging.merge_keys(wanted, self.site_settings)
        self.out.merges += merges
        for key in WRAPPERS:
            self._stage_key(key, keys)
        if not self.slurm_conf.exists:
            keys["PlugStackConfig"] = self.target.path("plugstack.conf")
            self.out.remarks.append(
                f"{self.slurm_conf.path} does not exist, so the site's settings were not checked. Add to slurm.conf: "
                f"include {self.target.path(FRAGMENT)}"
            )
        elif not self.slurm_conf.includes(self.target.path(FRAGMENT)):
            self.out.merges.append(Merge(f"{self.slurm_conf.path}: add the line:", (f"include {FRAGMENT}",)))
        head = self.templates.render("slurm-hami-hpc.conf", self.values | {"keys": keys, "reasons": REASONS})
        if self.slurm_conf.exists:
            lines, partitions, path = self.slurm_conf.lines, self.settings.partitions, self.slurm_conf.path
            self.out.merges += placement_lines.merge_lines(self.placement, self.site_settings, lines, partitions, path)
            self.out.remarks += placement_lines.remarks(self.placement, lines, partitions)
        self._add_block(FRAGMENT, head, self._node_line())

    def _may_have_slurmdbd(self) -> bool:
        return not self.slurm_conf.exists or merging.has_slurmdbd(self.site_settings)

    def _client_plugin(self) -> str:
        own = self.site_settings.get("clifilterplugins", [])
        script = on_disk.read(Path(self.target.path("cli_filter.lua")))
        shipped = on_disk.read(places.LUA / "cli_filter.lua")
        return filters.client_plugin(own[-1].value if own else "", script, shipped)

    def _stage_key(self, key: str, keys: dict[str, str]) -> None:
        program, settings = self.target.stage(key), self.site_settings.get(key.lower(), [])
        programs = (program, str(places.STAGES / key.lower()))
        scripts = [path for setting in settings for path in scripts_of(setting.value, self.target.directory)]
        if not settings:
            keys[key] = program
        elif not any(calls_one_of(path, programs) for path in scripts):
            self.out.merges.append(merging.merge_stage(key, program, settings[-1], self.target.directory))

    def earlier_blocks(self, name: str) -> dict[str, str]:
        """Returns the blocks of one of hami_hpc's files, without those of nodes that slurm.conf itself has now."""
        by_node = blocks(on_disk.read(Path(self.target.path(name))) or "")
        if name != FRAGMENT:
            return by_node
        return {node: text for node, text in by_node.items() if self.inputs.nodes.of(node) is None}

    def _add_block(self, name: str, head: str, lines: str) -> None:
        self.out.files[name] = ""  # its place among the files; the blocks of all nodes are not known yet
        self.out.heads[name] = head
        self.out.blocks[name] = block(self.target.node, lines) if lines else ""

    def _node_line(self) -> str:
        """Returns the NodeName line for the fragment; "" for a node that slurm.conf itself has."""
        nodes = self.inputs.nodes
        site_line = nodes.of(self.target.node)
        if site_line is not None:
            merge = merging.merge_node(site_line, self.offer.gres, self.offer.features)
            self.out.merges.append(merge)
            return ""
        remark = merging.unnamed_remark(self.slurm_conf.path, nodes, self.target.node, FRAGMENT)
        self.out.own_remarks += [remark] if remark and not self.target.node_parameters else []
        words = (f"NodeName={self.target.node}", self._node_parameters(), f"Gres={self.offer.gres}")
        return " ".join([*(word for word in words if word), f"Feature={','.join(self.offer.features)}"])

    def _node_parameters(self) -> str:
        """Returns those given; where they say nothing of CPUs and Cores= needs it, the machine's too."""
        given = self.target.node_parameters
        return near.with_cpus(given, self.target.shape) if self.placement.has_cores else given

    def _can_have_cores(self, with_gpus: bool) -> bool:
        """Returns whether Cores= can be written for this node; adds a remark where it cannot."""
        nodes = self.inputs.nodes
        site_line = nodes.of(self.target.node)
        if site_line is None:
            words = nodes.default_cpus | cpus_of(parse_line("", 0, f"NodeName=x {self._node_parameters()}"))
        else:
            words = dict(site_line.cpus)
        places = [self.target.near.get(minor, Near()) for line in self.offer.lines for minor in line.gpus]
        why = near.obstacle(places, self.target.shape, words)
        if not why and not with_gpus:
            why = f"Cores= is left out for {merging.NODES}, whose gpu lines in gres.conf are the site's: add it there"
        self.out.own_remarks += [why] if why else []
        return not why

    def _gres(self) -> None:
        path, site_file = self.target.path("gres.conf"), self.inputs.gres_conf
        with_gpus = True
        if site_file is None:
            self.out.add("gres.conf", self.templates.render("gres.conf", self.values))
        else:
            site_lines = self.inputs.gres_lines.of(self.target.node)
            with_places = self.settings.slices_max > 1
            with_gpus = with_places or not any(line.get("Name").lower() == "gpu" for line in site_lines)
            model = "" if with_places else self.model
            self.out.merges += merging.merge_gres(site_lines, model, self.target.static)
            if not with_gpus:
                self.out.merges += merging.merge_static(site_lines, self.target.static, path)
            if not site_file.includes(self.target.path(GRES)):
                self.out.merges.append(Merge(f"{path}: add the line:", (f"include {GRES}",)))
        head = self.templates.render(GRES, self.values)
        with_cores = self.placement.has_cores and self._can_have_cores(with_gpus)
        # Links= counts all GPUs, and those with a static MIG layout have no line.
        place = self.target.near if not self.target.static else near.without_links(self.target.near)
        runs = {line.gpu_type: near.runs_of(line, place, with_cores) for line in self.offer.lines}
        values = self.values | {"with_gpus": with_gpus, "runs": runs}
        self._add_block(GRES, head, self.templates.render("node-gres", values))

    def _tenants(self) -> None:
        node, static = self.target.node, self.target.static
        self._add_block(
            tenants.FILE, tenants.HEAD, tenants.of_node(self.settings, self.offer, node, static, self.slurm_conf.lines)
        )

    def _qos(self) -> None:
        wanted = self.inputs.qos
        if not wanted or not self._may_have_slurmdbd():
            return
        program = (sys.executable, "-I", "-m", "hami_hpc.cli", "qos", "apply", "--config", self.settings.path)
        commands = [qos.line(words) for words in qos.plan(wanted, {})]
        values = self.values | {"apply": shlex.join(program), "commands": commands}
        self.out.add(QOS, self.templates.render(QOS, values))

    def _spank(self) -> None:
        content = self.templates.render("plugstack-hami-hpc.conf", self.values)
        self.out.add(SPANK, content)
        self.out.add(PAM, self.templates.render(PAM, self.values))
        settings = self.site_settings.get("plugstackconfig")
        path = settings[-1].value if settings else self.target.path("plugstack.conf")
        current = on_disk.read(Path(path))
        if path == self.target.path("plugstack.conf") and (current is None or is_ours(current)):
            self.out.add("plugstack.conf", self.templates.render("plugstack.conf", self.values))
            return
        if "\r" in (current or ""):
            what = f"{path} ends lines with CR LF, and Slurm takes the CR for a part of the last word. Run:"
            self.out.merges.append(Merge(what, (f"sed -i 's/\\r$//' {path}",)))
        wanted = content.strip().splitlines()[-1]
        line = plugstack.our_line(path)
        drop_in = os.path.realpath(self.target.path(SPANK))
        if line is not None and os.path.realpath(line.where.rpartition(":")[0]) != drop_in:
            if [line.kind, *line.arguments] != [plugstack.REQUIRED, *wanted.split()[2:]]:
                self.out.merges.append(Merge(f"{line.where}: instead of the line for {line.plugin} write:", (wanted,)))
        elif not plugstack.reads(path, self.target.path(SPANK)):
            what = f"{path}: add the line (for configless nodes add '{wanted}' instead: no include reaches them):"
            self.out.merges.append(Merge(what, (f"include {self.target.path(SPANK)}",)))

    def _filters(self) -> None:
        for name in filters.CALLS:
            path = self.target.path(name)
            text = on_disk.read(Path(path))
            if text is None:
                what = f"{path} does not exist, and Slurm's lua plugins need it. Run:"
                self.out.merges.append(Merge(what, (f"install -m 0644 {places.LUA / name} {path}",)))
                self._check_modules_are_public()
                continue
            missing = filters.missing_calls(name, text)
            if missing:
                self._check_modules_are_public()
                what = f"{path} does not call hami_hpc's {' and '.join(missing)}. Add to it:"
                self.out.merges.append(Merge(what, filters.lines_for(name, str(places.LUA))))

    def _check_modules_are_public(self) -> None:
        """Adds a remark when users' commands, which run cli_filter.lua, could not read hami_hpc's modules."""
        remark = (
            f"users cannot read {places.LUA}, and sbatch would refuse all of their jobs. Before you add the lines "
            "below, install hami_hpc (make install) or move this checkout"
        )
        if not on_disk.is_public(places.LUA / "hami_hpc.lua") and remark not in self.out.remarks:
            self.out.remarks.append(remark)

    def _cgroup(self) -> None:
        path = Path(self.target.path("cgroup.conf"))
        current = on_disk.read(path)
        if current is None or is_ours(current):
            self.out.add("cgroup.conf", self.templates.render("cgroup.conf", self.values))
            return
        settings: Mapping[str, list[Setting]] = settings_of(ConfFile(str(path)).lines)
        if not settings.get("constraindevices") or settings["constraindevices"][-1].value.lower() != "yes":
            self.out.merges.append(Merge(f"{path}: set:", ("ConstrainDevices=yes",)))
