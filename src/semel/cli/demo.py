"""`semel demo`: real processes, a bad link, kill -9, and the count at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semel.cli.bundles import bundled
from semel.cli.terminal import CommandResult, Terminal


@bundled
def demo(
    context: typer.Context,
    messages: Annotated[int, typer.Option("--messages", metavar="N", help="Messages to send.")] = 2000,
    loss: Annotated[float, typer.Option("--loss", metavar="P", help="Chance that a frame is lost.")] = 0.05,
    doubling: Annotated[float, typer.Option("--doubling", metavar="P", help="Chance that it comes twice.")] = 0.05,
    delay: Annotated[float, typer.Option("--delay", metavar="P", help="Chance that others overtake it.")] = 0.10,
    cuts: Annotated[float, typer.Option("--cuts", metavar="P", help="Chance that it cuts the connection.")] = 0.002,
    kills: Annotated[int, typer.Option("--kills", metavar="N", help="How often a process is killed with -9.")] = 2,
    seed: Annotated[int, typer.Option("--seed", metavar="K", help="The seed of the faults.")] = 1,
    plant: Annotated[
        str | None, typer.Option("--plant", metavar="NAME", help="Build in a mistake, to see that it is noticed.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data and the logs.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Put them here. Default: a temporary folder.")
    ] = None,
    hub: Annotated[
        bool, typer.Option("--hub/--no-hub", help="Let clients of the pub/sub server have their part.")
    ] = True,
    audit: Annotated[
        bool, typer.Option("--audit/--no-audit", help="End with an audit of the ledgers by Spark.")
    ] = True,
) -> CommandResult:
    """See it work: two processes exchange messages over a link that loses, doubles, delays and cuts, and are killed.
    Beside them clients of a hub, ours and Microsoft's, whose connections are cut while the server is killed.

    Exit code 0 when nothing was lost, doubled or out of order; 1 when something was.

    \b
    Examples:
      semel demo
      semel demo --messages 10000 --loss 0.2 --kills 6
      semel demo --plant no-dedup
      semel demo --no-hub --no-audit
      semel demo --json
    """
    from semel.demo import DemoOptions, run

    terminal: Terminal = context.obj
    options = DemoOptions(
        messages=messages,
        loss=loss,
        doubling=doubling,
        delay=delay,
        cuts=cuts,
        kills=kills,
        seed=seed,
        plant=plant,
        keep=keep,
        folder=folder,
        audit=audit,
        hub=hub,
    )
    result = run(options, terminal.story)
    if result.holds:
        return CommandResult(result.as_dict())
    error = {
        "code": "claim-false",
        "message": "messages were lost, doubled or out of order",
        "fix": "this must not happen: please report it, with what was printed"
        if plant is None
        else f"the mistake {plant!r} was built in: leave out --plant",
    }
    return CommandResult(result.as_dict(), (), result.exit_code, error)
