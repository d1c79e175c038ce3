"""`semel demo`: real processes, a bad link, kill -9, and the count at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semel.cli.options import bundled, option
from semel.cli.terminal import CommandResult, Terminal, claim_false


@bundled
def demo(
    context: typer.Context,
    messages: Annotated[int, option("--messages", "Messages to send.", "N")] = 2000,
    loss: Annotated[float, option("--loss", "Chance that a frame is lost.", "P")] = 0.05,
    doubling: Annotated[float, option("--doubling", "Chance that it comes twice.", "P")] = 0.05,
    delay: Annotated[float, option("--delay", "Chance that others overtake it.", "P")] = 0.10,
    cuts: Annotated[float, option("--cuts", "Chance that it cuts the connection.", "P")] = 0.002,
    kills: Annotated[int, option("--kills", "How often a process is killed with -9.", "N")] = 2,
    seed: Annotated[int, option("--seed", "The seed of the faults.", "K")] = 1,
    plant: Annotated[str | None, option("--plant", "Build in a mistake, to see that it is noticed.", "NAME")] = None,
    keep: Annotated[bool, option("--keep", "Keep the data and the logs.")] = False,
    folder: Annotated[Path | None, option("--folder", "Put them here. Default: a temporary folder.", "DIR")] = None,
    hub: Annotated[bool, option("--hub/--no-hub", "Let clients of the pub/sub server have their part.")] = True,
    inbox: Annotated[bool, option("--inbox/--no-inbox", "Let a shop behind a broker have its part.")] = True,
    audit: Annotated[bool, option("--audit/--no-audit", "End with an audit of the ledgers by Spark.")] = True,
) -> CommandResult:
    """See it work: two processes exchange messages over a link that loses, doubles, delays and cuts, and are killed.
    Beside them clients of a hub, ours and Microsoft's, whose connections are cut while the server is killed, and a shop
    that charges for orders from a broker, which come twice, while its handlers are killed.

    Exit code 0 when nothing was lost, doubled or out of order; 1 when something was.

    \b
    Examples:
      semel demo
      semel demo --messages 10000 --loss 0.2 --kills 6
      semel demo --plant no-dedup
      semel demo --no-hub --no-inbox --no-audit
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
        inbox=inbox,
    )
    result = run(options, terminal.story)
    if result.holds:
        return CommandResult(result.as_dict())
    fix = "this must not happen: please report it, with what was printed"
    if plant is not None:
        fix = f"the mistake {plant!r} was built in: leave out --plant"
    error = claim_false("messages were lost, doubled or out of order", fix)
    return CommandResult(result.as_dict(), (), result.exit_code, error)
