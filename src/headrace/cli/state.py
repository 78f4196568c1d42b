"""`headrace state`: look into the state of streams, check it, and delete what nobody needs."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace.cli import screen
from headrace.cli.options import AsJson, Debug
from headrace.measure.recorded import last_record
from headrace.spark.progress import StageProgress, stage_progress
from headrace.state.inspect import bytes_on_disk, collect_stage, stages_of, verify_stage
from headrace.state.store import KEPT_BATCHES, StageStore

state = typer.Typer(
    name="state",
    no_args_is_help=True,
    help="Look into the state that streams keep between batches, check it, and delete what nobody needs.",
)

Location = Annotated[
    str, typer.Argument(metavar="LOCATION", help="The state location: a folder, or a URL that fsspec knows.")
]
_NEWEST = 1 << 62


@state.command()
def show(location: Location, as_json: AsJson = False, debug: Debug = False) -> None:
    """What is there: queries, stages, versions, sizes, and what each metric costs.

    [dim]headrace state show /shared/state
    headrace state show s3://bucket/state --json[/dim]
    """
    stages = [_described(store) for store in stages_of(location)]
    if as_json:
        _print_json({"location": location, "stages": stages})
        return
    for stage in stages:
        _print_stage(stage)


@state.command()
def verify(location: Location, as_json: AsJson = False, debug: Debug = False) -> None:
    """Read every file that a version names and compare it with what was written. Exits with 1 if any is damaged.

    [dim]headrace state verify /shared/state[/dim]
    """
    stages = stages_of(location)
    damages = [damage for store in stages for damage in verify_stage(store)]
    files = sum(len(store.named_files()) for store in stages) if not damages else None
    if as_json:
        _print_json({"location": location, "damaged": [dataclasses.asdict(damage) for damage in damages]})
    elif damages:
        for damage in damages:
            screen.out.print(f"[red]damaged[/]: {damage.file}: {damage.problem}", soft_wrap=True)
    else:
        screen.out.print(
            f"[green]ok[/]: {_counted(files or 0, 'file')} of {_counted(len(stages), 'stage')}, none damaged"
        )
    if damages:
        raise typer.Exit(1)


@state.command()
def gc(
    location: Location,
    versions: Annotated[
        int, typer.Option(min=1, help="How many batches back a query can be started from.")
    ] = KEPT_BATCHES,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete old versions, and files that no version names. Safe while queries run: they do it themselves now and then.

    [dim]headrace state gc /shared/state --dry-run
    headrace state gc /shared/state --versions 3[/dim]
    """
    found = [collect_stage(store, versions, dry=dry_run) for store in stages_of(location)]
    files = [name for each in found for name in each.files]
    size = sum(each.size_bytes for each in found)
    if as_json:
        _print_json({"location": location, "deleted": files, "bytes": size, "dry_run": dry_run})
        return
    for name in files if dry_run else ():
        screen.out.print(f"would delete {name}", soft_wrap=True)
    verb = "would free" if dry_run else "freed"
    screen.out.print(f"[green]ok[/]: {verb} {screen.size_text(size)} in {_counted(len(files), 'entry', 'entries')}")


def _described(store: StageStore) -> dict[str, Any]:
    query, _, name = store.folder.partition("/")
    progress = stage_progress(store.place, query, name)
    record = last_record(store, _NEWEST) or {}
    return {
        "query": query,
        "stage": name,
        "versions": store.batches(),
        "metrics": record.get("metrics", {}),
        "columns": record.get("columns", {}),
        "shards": record.get("shards"),
        "bytes_on_disk": bytes_on_disk(store.place, store.folder),
        "progress": None if progress is None else dataclasses.asdict(progress),
        "_progress": progress,
    }


def _print_json(found: dict[str, Any]) -> None:
    for stage in found.get("stages", ()):
        stage.pop("_progress")
    screen.out.print(json.dumps(found, indent=2, default=str), markup=False, soft_wrap=True)


def _print_stage(stage: dict[str, Any]) -> None:
    size = screen.size_text(stage["bytes_on_disk"])
    screen.out.print(f"[bold]{stage['stage']}[/] of query {stage['query']}: {size} on disk")
    progress: StageProgress | None = stage["_progress"]
    if progress is None:
        screen.out.print("  no complete version yet\n")
        return
    versions = stage["versions"]
    rows = sum(progress.counts.values())
    said = ", ".join(f"{count:,} {status}" for status, count in progress.counts.items() if count)
    screen.out.print(f"  batch {progress.batch}; versions {versions[0]} to {versions[-1]}; {stage['shards']} shards")
    screen.out.print(f"  {rows:,} rows: {said}" if rows else "  no rows yet")
    span = f", {progress.oldest:%Y-%m-%d %H:%M:%S} to {progress.newest:%Y-%m-%d %H:%M:%S}" if progress.oldest else ""
    screen.out.print(f"  remembers {progress.events:,} events{span}: {screen.size_text(progress.event_bytes)} in files")
    screen.out.print(_costs(progress, stage["metrics"]))
    for metric, moment in progress.complete_from.items():
        screen.out.print(f"  {metric} has seen every event after {moment:%Y-%m-%d %H:%M:%S}")
    screen.out.print()


def _costs(progress: StageProgress, metrics: dict[str, str]) -> Table:
    table = Table("  what", "is", "bytes", "a group", box=None, header_style="dim", pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    for name, size in sorted(progress.bytes.items(), key=lambda item: -item[1]):
        each = f"{size / progress.groups:,.0f}" if progress.groups else ""
        table.add_row(
            f"  {name.removeprefix('metric ')}", metrics.get(name.removeprefix("metric "), ""), f"{size:,}", each
        )
    return table


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
