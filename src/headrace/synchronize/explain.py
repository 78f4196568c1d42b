"""A plan for people: a tree with rates and places, or Mermaid text."""

from __future__ import annotations

from typing import Literal

from headrace.synchronize.optimize import cost_of
from headrace.synchronize.plan import Member, Plan


def explain(plan: Plan, form: Literal["tree", "mermaid"] = "tree") -> str:
    return _mermaid(plan) if form == "mermaid" else _tree(plan)


def _tree(plan: Plan) -> str:
    cost = cost_of(plan)
    leaves = sum(member.children is None for member in plan.members)
    lines = [
        f"program {plan.space.program.name}: {_counted(leaves, 'leaf', 'leaves')} of "
        f"{_counted(len(plan.members), 'worker', 'workers')} in {_counted(plan.tasks, 'task', 'tasks')}"
    ]

    def draw(member: Member, before: str, is_last: bool) -> None:
        lines.append(f"{before}{'└─' if is_last else '├─'} {_said(plan, member)}")
        children = member.children or ()
        for number, child in enumerate(children, 1):
            draw(plan.members[child], before + ("   " if is_last else "│  "), number == len(children))

    draw(plan.members[0], "", True)
    total = sum(entry.rate for entry in plan.entries) or 1.0
    lines.append(
        f"of 100 events: {100 * cost.messages / total:.3g} messages between workers, "
        f"{100 * cost.between_tasks / total:.3g} of them between tasks; the busiest task takes "
        f"{100 * cost.busiest / total:.3g} events; a state for the root goes {cost.critical_path} steps"
    )
    return "\n".join(lines)


def _said(plan: Plan, member: Member) -> str:
    tags = [f"{plan.entries[tag]} ({plan.entries[tag].rate:g})" for tag in member.tags]
    shown = ", ".join(tags[:6]) + (f", and {len(tags) - 6} more" if len(tags) > 6 else "")
    role = "updates with" if member.children is None else "joins for" if tags else "joins and forks"
    return f"{member.name}, task {member.task}: {role}{' ' + shown if shown else ''}"


def _mermaid(plan: Plan) -> str:
    lines = ["flowchart TD"]
    for member in plan.members:
        tags = [str(plan.entries[tag]) for tag in member.tags]
        text = "<br>".join([f"{member.name}, task {member.task}", *tags[:6], *(["…"] if len(tags) > 6 else [])])
        lines.append(f'  {member.name}["{text}"]')
        lines += [f"  {member.name} --> {plan.members[child].name}" for child in member.children or ()]
    return "\n".join(lines)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
