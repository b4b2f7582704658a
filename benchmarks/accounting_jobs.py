# SPDX-License-Identifier: Apache-2.0
"""A made-up but realistic accounting export of any size: what `sacct -P` would print, streamed to a file.

Skewed as on a real cluster: few users own most jobs, most jobs are short and a few last days, a third are array
tasks, states are mixed, GPUs are held whole, as MIG instances, as vGPU slices, as bare shards or not at all.
Every value comes from a hash of the job's number: the same call writes the same file.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

START_S = 1_735_689_600  # 2025-01-01T00:00:00Z
MONTH_S = 2_629_746
ZONE = "Europe/Berlin"

_KIND = """CASE WHEN u_kind < 0.33 THEN 'cpu' WHEN u_kind < 0.66 THEN 'gpu' WHEN u_kind < 0.90 THEN 'vgpu'
      WHEN u_kind < 0.97 THEN 'mig' ELSE 'shard' END"""
_MEM_MIB = "[4096, 8192, 12288, 16384, 24576, 32768, 49152, 71578][1 + (h >> 8) % 8]"
_PERCENT = "[5, 10, 20, 25, 30, 50, 75, 100][1 + (h >> 16) % 8]"
_JOBS = """
WITH drawn AS (
  SELECT i, 1000000 + i AS id,
    (hash(i || 'a') >> 11) / 9007199254740992.0 AS u_user, (hash(i || 'b') >> 11) / 9007199254740992.0 AS u_time,
    (hash(i || 'c') >> 11) / 9007199254740992.0 AS u_state, (hash(i || 'd') >> 11) / 9007199254740992.0 AS u_kind,
    (hash(i || 'e') >> 11) / 9007199254740992.0 AS u_size, (hash(i || 'f') >> 11) / 9007199254740992.0 AS u_wait,
    (hash(i || 'g') >> 1)::BIGINT AS h
  FROM range({jobs}) AS r(i)
), shaped AS (
  SELECT *, floor({users} * pow(u_user, 3))::BIGINT AS user_number,
    {start} + (i * ({span} / {jobs}))::BIGINT AS submit,
    least(604800, (20 * exp(9.5 * u_time * u_time))::BIGINT + h % 7) AS length,
    CASE WHEN u_wait < 0.4 THEN h % 5 ELSE (3 * exp(9 * u_wait * u_wait))::BIGINT END AS wait,
    CASE WHEN u_size < 0.6 THEN 1 WHEN u_size < 0.75 THEN 2 WHEN u_size < 0.9 THEN 4 ELSE 8 END AS n,
    {kind} AS kind,
    CASE WHEN u_state < 0.74 THEN 'COMPLETED' WHEN u_state < 0.86 THEN 'FAILED'
      WHEN u_state < 0.93 THEN 'CANCELLED by ' || (20000 + h % 2000)
      WHEN u_state < 0.97 THEN 'TIMEOUT' WHEN u_state < 0.985 THEN 'OUT_OF_MEMORY'
      WHEN u_state < 0.995 THEN 'PREEMPTED' ELSE 'NODE_FAIL' END AS state,
    CASE WHEN h % 200 = 0 THEN h % 900 ELSE 0 END AS suspended,
    2 + 2 * (h % 8) AS cores8, {mem_mib} AS mem_mib,
    {percent} AS percent,
    ['std', 'std', 'lc', 'be'][1 + (h >> 24) % 4] AS cls, ['h200', 'a100'][1 + (h >> 28) % 2] AS model,
    1 + (h >> 32) % 120 AS node
  FROM drawn
), timed AS (
  SELECT *, submit + wait AS s, submit + wait + length + suspended AS e,
    greatest(ceil(mem_mib / 256.0), floor(559 * percent / 100.0))::BIGINT AS shards FROM shaped
)
SELECT id AS JobIDRaw, 'acct' || {account} AS Account, 'u' || lpad(user_number::VARCHAR, 5, '0') AS User,
  CASE kind WHEN 'cpu' THEN 'cpu' WHEN 'gpu' THEN model WHEN 'mig' THEN 'mig' ELSE 'h200' END AS Partition,
  state AS State, {time}(submit) AS Submit, {time}(s) AS Start, {time}(e) AS End,
  'billing=' || {billing} || ',cpu=' || cores8 || CASE kind WHEN 'cpu' THEN ''
    WHEN 'gpu' THEN ',gres/gpu:' || model || '=' || n || ',gres/gpu=' || n
    WHEN 'mig' THEN ',gres/gpu:h200_' || ['1g.18gb', '2g.35gb', '3g.71gb'][1 + h % 3] || '=1,gres/gpu=1'
    WHEN 'shard' THEN ',gres/shard=' || 10 * n
    ELSE ',gres/shard=' || shards || ',gres/vgpu:' || cls || '=1,gres/vgpu=1,gres/vgpu_cores=' || percent
      || ',gres/vgpu_mem=' || mem_mib END || ',mem=' || cores8 * 4 || 'G,node=1' AS AllocTRES,
  'bench' AS Cluster, CASE WHEN h % 3 = 0 THEN (id - id % 50) || '_' || id % 50 ELSE id::VARCHAR END AS JobID,
  20000 + user_number AS UID, CASE cls WHEN 'std' THEN 'normal' ELSE cls END AS QOS, {time}(submit) AS Eligible,
  length AS ElapsedRaw, CASE WHEN suspended = 0 THEN '00:00:00'
    ELSE printf('00:%02d:%02d', suspended // 60, suspended % 60) END AS Suspended,
  'gpu' || lpad(node::VARCHAR, 3, '0') AS NodeList, '' AS Constraints
FROM timed
"""


def write_export(
    path: Path,
    jobs: int,
    users: int = 2000,
    months: int = 14,
    memory_mib: int = 512,
    accounts: int = 0,
    distinct: str = "",
) -> None:
    """Write ``jobs`` runs of ``users`` users over ``months`` months, local times of ZONE. Bounded memory.

    accounts: so many, with equally many jobs; 0 for 97, each of the same users. distinct: in what no two runs have the
    same AllocTRES: in their ``billing``, or as ``slices`` that differ in memory and time; empty for neither.
    """
    con = duckdb.connect(config={"memory_limit": f"{memory_mib}MiB", "threads": "2"})
    con.execute(
        f"CREATE MACRO local_text(t) AS strftime(timezone('{ZONE}', to_timestamp(t::BIGINT)), '%Y-%m-%dT%H:%M:%S')"
    )
    query = _JOBS.format(
        jobs=jobs,
        users=users,
        start=START_S,
        span=months * MONTH_S,
        time="local_text",
        account=f"i % {accounts}" if accounts else "user_number % 97",
        billing="i" if distinct == "billing" else "cores8",
        kind="'vgpu'" if distinct == "slices" else _KIND,
        mem_mib="1 + i % 143000" if distinct == "slices" else _MEM_MIB,
        percent="1 + i // 143000" if distinct == "slices" else _PERCENT,
    )
    quoted = str(path).replace("'", "''")
    con.execute(f"COPY ({query}) TO '{quoted}' (FORMAT csv, DELIMITER '|', HEADER, QUOTE '', ESCAPE '')")
    con.close()
