"""What event handlers have set as cookies, for each connection on its own.

A load balancer in front of several handlers keeps all events of one client with one of them by a cookie. Cookies live
in memory: after a restart, or on another node, a client begins without.
"""

from __future__ import annotations

from collections import OrderedDict

import httpx

CONNECTIONS_MAX = 10_000
COOKIES_MAX = 20
CHARS_MAX = 4096


class Cookies:
    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._jars: OrderedDict[str, httpx.Cookies] = OrderedDict()
        self._connections_max = connections_max

    def __len__(self) -> int:
        return len(self._jars)

    def add_to(self, request: httpx.Request, connection: str) -> None:
        """Those that are for the address of the request."""
        jar = self._jars.get(connection)
        if jar is not None:
            self._jars.move_to_end(connection)
            jar.set_cookie_header(request)

    def keep(self, response: httpx.Response, connection: str) -> None:
        """Those of a response that took the event. Who sets too much has none."""
        said = response.headers.get_list("set-cookie")
        if not said or not response.is_success:
            return
        jar = self._jars.setdefault(connection, httpx.Cookies())
        if sum(map(len, said)) <= CHARS_MAX:
            jar.extract_cookies(response)
        if not 0 < len(jar) <= COOKIES_MAX:
            del self._jars[connection]
        elif len(self._jars) > self._connections_max:
            self._jars.popitem(last=False)

    def forget(self, connection: str) -> None:
        self._jars.pop(connection, None)
