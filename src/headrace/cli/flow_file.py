"""A flow from a Python file: the one it draws."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

from headrace.errors import FlowError, HeadraceError, InputError
from headrace.flow.builder import Flow as DrawnFlow
from headrace.spark.live import Flow


def load_flow(target: str) -> Flow:
    """From `FILE.py`, or `FILE.py:NAME` where it draws several."""
    path, _, name = target.partition(":")
    flows = {key: value for key, value in vars(_loaded(Path(path))).items() if isinstance(value, DrawnFlow)}
    if not flows:
        raise FlowError(f"{path} draws no flow; it needs one at its top level: flow = hr.Flow(...)")
    if name and name not in flows:
        raise FlowError(f"{path} has no flow {name}; it has {', '.join(flows)}")
    if not name and len(flows) > 1 and "flow" not in flows:
        raise FlowError(f"{path} has several flows, {', '.join(flows)}; say which, as in {path}:{next(iter(flows))}")
    found = flows[name] if name else flows.get("flow", next(iter(flows.values())))
    assert isinstance(found, Flow)
    return found


def _loaded(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; name a Python file that draws a flow")
    spec = importlib.util.spec_from_file_location(f"headrace_flow_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Workers do not have the file: its functions travel with the flow.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f", line {frames[-1].lineno}" if frames else ""
        if isinstance(error, SyntaxError) and error.lineno:
            where = f", line {error.lineno}"
        raise FlowError(f"{path}{where}: {type(error).__name__}: {error}") from error
    return module
