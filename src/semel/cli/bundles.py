"""Options that belong together are one parameter of a command: a dataclass whose fields are options.

    @app.command("status")
    @bundled
    def status(context: typer.Context, places: StoreOptions) -> CommandResult: ...

On the command line they come after the command's own options, and `--json` and `--debug` after all of them. No command
takes those two itself: `semel.cli.main` reads them before anything else, so that even a mistake in the rest is told in
the form that was asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show where an error comes from. Also: SEMEL_DEBUG=1.")]

Result = TypeVar("Result")


def bundled(command: Callable[..., Result]) -> Callable[..., Result]:
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    bundles: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}

    @wraps(command)
    def expanded(*, json: bool, debug: bool, **given: Any) -> Result:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        return command(**given)

    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.name not in bundles]
    options += [option for bundle in bundles.values() for option in _options(bundle)]
    options += [_flag("json", JsonOption), _flag("debug", DebugOption)]
    expanded.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return expanded


def _options(bundle: Any) -> list[Parameter]:
    types = get_type_hints(bundle, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
        for field in fields(bundle)
    ]


def _flag(name: str, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
