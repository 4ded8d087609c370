"""The frames around a completion: what waits for its value, and what is left when it is over."""

from __future__ import annotations

from imp_server.grammar.frames.store import ListedFrame, Store


class Done(ListedFrame):
    """The completion is over: only an end token may follow."""

    __slots__ = ()

    def entries(self) -> dict[int, int]:
        return {}

    def lead(self) -> bytes:
        return b""


class Ended(ListedFrame):
    """All of an envelope was read: the frame ends without a byte."""

    __slots__ = ()

    def entries(self) -> dict[int, int]:
        return {}

    @property
    def end_result(self) -> int:
        return 0

    def lead(self) -> bytes:
        return b""


class Root(ListedFrame):
    """Waits for the one value of the completion."""

    __slots__ = ("done",)

    def __init__(self, store: Store, done: Done) -> None:
        super().__init__(store)
        self.done = done

    def entries(self) -> dict[int, int]:
        return dict.fromkeys(range(256), self.done.id)


class Ends:
    """One frame of each."""

    def __init__(self, store: Store) -> None:
        self.done: Done = store.local(store.table(), "done", lambda: Done(store))
        self.ended: Ended = store.local(store.table(), "ended", lambda: Ended(store))
        self.root: Root = store.local(store.table(), "root", lambda: Root(store, self.done))
