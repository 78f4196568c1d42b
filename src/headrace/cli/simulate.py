"""`headrace simulate`: a flow under crashes, pauses and delays, from seeds, in one process."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.cli import screen
from headrace.cli.flow_file import load_flow
from headrace.cli.options import Debug
from headrace.cli.run import FlowFile
from headrace.errors import FlowError
from headrace.simulate.check import PLANTS, Failure, Simulation, planted
from headrace.simulate.faults import KINDS, parse_fault
from headrace.simulate.world import Setup


def simulate(
    flow_file: FlowFile,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    runs: Annotated[int, typer.Option(min=1, help="How many seeds, one run each.")] = 100,
    faults: Annotated[
        str,
        typer.Option(metavar="KINDS", help=f"What may happen: {', '.join(KINDS)}; or what and when: crash@120."),
    ] = ",".join(KINDS),
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers. Default: 1 to 4, by the seed.")] = None,
    plant: Annotated[
        str | None, typer.Option(metavar="BUG", help=f"Plant a bug, which the runs must find: {', '.join(PLANTS)}.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1, help="How many lines of the story of a failed run to print.")] = 30,
    debug: Debug = False,
) -> None:
    """Run a flow in a simulated world, and compare it with its sequential run. Exits with 1 if they differ.

    [dim]headrace simulate trades.py --runs 1000
    headrace simulate trades.py --seed 41 --runs 1 --faults crash,power[/dim]
    """
    if plant is not None and plant not in PLANTS:
        raise FlowError(f"there is no bug {plant} to plant; there are {', '.join(PLANTS)}")
    graph = load_flow(flow_file).graph()
    simulation = Simulation(graph)
    began = time.monotonic()
    with planted(plant), screen.err.status("simulating") as status:
        for number in range(seed, seed + runs):
            status.update(f"seed {number}")
            setup = _setup(simulation, number, faults, workers)
            failure = simulation.run(setup)
            if failure is not None:
                status.update(f"seed {number} went wrong: looking for the smallest run that does")
                _tell(flow_file, failure, simulation.shrink(failure), plant, lines)
                raise typer.Exit(1)
    took = time.monotonic() - began
    screen.out.print(f"[green]ok[/]: {runs} runs from seed {seed}, all as the sequential run; {took:.1f} s")


def _setup(simulation: Simulation, seed: int, faults: str, workers: int | None) -> Setup:
    parts = [part for part in faults.split(",") if part]
    if any("@" in part for part in parts):
        found = simulation.setup(seed, (), workers)
        return Setup(seed, tuple(sorted(map(parse_fault, parts), key=lambda f: f.at)), found.workers, found.room_frames)
    return simulation.setup(seed, parts, workers)


def _tell(flow_file: str, first: Failure, smallest: Failure, plant: str | None, lines: int) -> None:
    setup = smallest.setup
    count = len(first.setup.faults)
    screen.out.print(f"[red]seed {first.setup.seed} went wrong[/] with {count} faults; the least that does:")
    screen.out.print(smallest.story(lines), markup=False, soft_wrap=True)
    faults = ",".join(map(str, setup.faults))
    command = f"headrace simulate {flow_file} --seed {setup.seed} --runs 1 --workers {setup.workers}"
    command += f" --faults '{faults}'" if faults else " --faults ''"
    command += f" --plant {plant}" if plant is not None else ""
    screen.out.print(f"\nagain: {command}", markup=False, soft_wrap=True)
