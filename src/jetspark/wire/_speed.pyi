from collections.abc import Callable
from typing import Any, Literal

ABI: int

def read_run(
    buf: bytes,
    pos: int,
    sid: bytes,
    make: Callable[..., Any] | None,
    owner: Any,
    items: list[Any],
    max_line: int,
    max_message: int,
    /,
) -> int: ...
def frames(
    prefixes: list[bytes],
    inbox: bytes,
    serial: int,
    blocks: list[bytes] | None,
    datas: list[bytes],
    start: int,
    stop: int,
    /,
) -> bytes: ...

class Rows:
    @property
    def need(self) -> int: ...
    def __len__(self) -> int: ...
    def read(
        self,
        buf: bytes,
        pos: int,
        sid: bytes,
        headers: dict[int, bytes],
        max_line: int,
        max_message: int,
        need_reply: bool,
        /,
    ) -> int: ...
    def resume(
        self,
        held: list[bytes | bytearray | memoryview],
        need: int,
        buf: bytes,
        sid: bytes,
        headers: dict[int, bytes],
        max_line: int,
        max_message: int,
        need_reply: bool,
        /,
    ) -> int: ...
    def export(self, kinds: bytes, constants: tuple[bytes, bytes, bytes], /) -> int: ...
    def extend(self, other: Rows, /) -> None: ...
    def truncate(self, count: int, /) -> None: ...
    def cells(self, column: Literal[0, 1, 2], /) -> list[bytes]: ...
    def reply(self, row: int, /) -> bytes: ...
    def pack(self, column: Literal[0, 1, 2], /) -> tuple[bytes, bytes]: ...
    def views(self) -> tuple[bytes, list[bytes]]: ...
    def positions(self) -> tuple[bytes, bytes] | None: ...
    def settle(
        self,
        cut: int,
        pending: dict[int, Any],
        ack_class: type[Any],
        batch_class: type[Any],
        /,
    ) -> tuple[int, int, int]: ...
    def size(self) -> int: ...
