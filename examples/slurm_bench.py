"""Run a benchmark on a SLURM cluster, with Dask workers as SLURM jobs started by submitit.

    python examples/slurm_bench.py --workers 16 --minutes 600 -- waterbirds celeba --root DATA --backbone … -o RESULTS

The arguments after ``--`` are those of ``compshift bench``. The scheduler runs in this process, so start it on a node
that the workers can reach; data and results must be on a file system that all of them share. If the script is stopped,
the same command resumes. ``--cluster local`` runs everything on one machine. Needs
``pip install 'compshift[torch,dask,slurm]'``.
"""

import argparse
import asyncio
import subprocess
import sys

import submitit
from distributed import LocalCluster, Worker


def work(address: str) -> None:
    """Run jobs for a Dask scheduler until it closes."""

    async def serve() -> None:
        async with Worker(address, nthreads=1, death_timeout="120 s") as worker:
            await worker.finished()

    asyncio.run(serve())


def main() -> int:
    """Start the scheduler and the workers, run the benchmark, and stop the workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4, help="SLURM jobs, each running one benchmark job at a time")
    parser.add_argument("--minutes", type=int, default=240, help="time limit of a worker")
    parser.add_argument("--partition", help="SLURM partition")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a worker")
    parser.add_argument("--cpus", type=int, default=4, help="cores of a worker")
    parser.add_argument("--host", help="address of this node that workers can reach")
    parser.add_argument("--logs", default="slurm-logs", help="folder for the workers' logs")
    parser.add_argument("--cluster", help="slurm or local; detected if not given")
    parser.add_argument("bench", nargs="+", help="arguments of compshift bench, after --")
    arguments = parser.parse_args()

    executor = submitit.AutoExecutor(folder=arguments.logs, cluster=arguments.cluster)
    executor.update_parameters(
        timeout_min=arguments.minutes, cpus_per_task=arguments.cpus, gpus_per_node=arguments.gpus, name="compshift"
    )
    if arguments.partition:
        executor.update_parameters(slurm_partition=arguments.partition)
    # A LocalCluster without workers is just a scheduler.
    with LocalCluster(n_workers=0, host=arguments.host, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        workers = executor.map_array(work, [address] * arguments.workers)
        where = ["--backend", "dask", "--scheduler", address, "--timeout", "3600", "--threads", str(arguments.cpus)]
        try:
            return subprocess.run([sys.executable, "-m", "compshift", "bench", *arguments.bench, *where]).returncode
        finally:
            for worker in workers:
                worker.cancel()


if __name__ == "__main__":
    sys.exit(main())
