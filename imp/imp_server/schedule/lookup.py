"""What of a prompt can be reused: the longest known prefix after which every cache group can go on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import EMPTY
from imp_server.schedule.prefix import PrefixHit
from imp_server.schedule.snapshots import Snapshot, Snapshots
from imp_server.schedule.tree import TOKEN_BYTES, Match, PrefixTree, TreeNode, key_of


class Lookup:
    """Reads the tree and the snapshots; owns nothing."""

    def __init__(self, groups: Sequence[CacheGroup], tree: PrefixTree, snapshots: Snapshots | None) -> None:
        """`snapshots`: of the state groups; None if there are none."""
        self._groups, self._tree, self._snapshots = groups, tree, snapshots
        self._with_blocks = [g for g, group in enumerate(groups) if group.kind != "state"]

    def find(self, ids: NDArray[np.int32], reuse_group: int) -> PrefixHit:
        """At most all of `ids`. Marks what it finds as used."""
        key = key_of(ids)
        if not self._with_blocks:
            return self._at_snapshot(Match((), len(ids)), key, reuse_group, may_load=True)
        match = self._tree.match(key, reuse_group, len(ids))
        if self._snapshots is not None:
            return self._at_snapshot(match, key, reuse_group, may_load=True)
        return self._hit(self._shortened(match, may_load=True))

    def resident_part(self, match: Match, ids: NDArray[np.int32], reuse_group: int) -> PrefixHit:
        """The longest part of the match that the pools hold and every group can resume after."""
        if self._snapshots is not None:
            return self._at_snapshot(match, key_of(ids), reuse_group, may_load=False)
        return self._hit(self._shortened(match, may_load=False))

    def first_seen(self, group: int, n_tokens: int) -> int:
        """First column that a query at position `n_tokens` of this group still sees.

        The caller always runs a token behind the prefix, so nothing before it has to be computed again.
        """
        window = self._groups[group].window
        return max(0, n_tokens + 1 - window) // BLOCK_TOKENS if window else 0

    def needed(self, column: int, n_tokens: int) -> list[int]:
        """Groups whose block of this column a row needs that resumes at `n_tokens`."""
        return [g for g in self._with_blocks if column >= self.first_seen(g, n_tokens)]

    def _at_snapshot(self, match: Match, key: bytes, reuse_group: int, *, may_load: bool) -> PrefixHit:
        """State groups resume at their snapshots alone, the others wherever they have blocks."""
        assert self._snapshots is not None
        for snapshot in reversed(self._snapshots.along(key[: match.n_tokens * TOKEN_BYTES], reuse_group)):
            cut = Match(match.nodes[: -(-snapshot.n_tokens // BLOCK_TOKENS)], snapshot.n_tokens)
            if all(self._resumes(g, cut.nodes, cut.n_tokens, may_load) for g in self._with_blocks):
                return self._hit(cut, snapshot)
        return PrefixHit(is_unusable=bool(match.nodes))

    def _hit(self, match: Match, snapshot: Snapshot | None = None) -> PrefixHit:
        """The match's blocks; those that only a tier has, and the state, are missing yet."""
        if not match.n_tokens:
            return PrefixHit()
        lacks = any(
            node.blocks[g] == EMPTY
            for g in self._with_blocks
            for node in match.nodes[self.first_seen(g, match.n_tokens) :]
        )
        is_below = lacks or snapshot is not None or not all(node.is_resident for node in match.nodes)
        blocks = tuple(self._columns(g, match) for g in range(len(self._groups)))
        return PrefixHit(match.n_tokens, blocks, nodes=match.nodes, is_below=is_below, snapshot=snapshot)

    def _columns(self, group: int, match: Match) -> tuple[int, ...]:
        if self._groups[group].kind == "state":
            return ()
        first = self.first_seen(group, match.n_tokens)
        return tuple(EMPTY if i < first else node.blocks[group] for i, node in enumerate(match.nodes))

    def _shortened(self, match: Match, *, may_load: bool) -> Match:
        """The match cut back to a length at which every group can resume."""
        nodes, n_tokens = match.nodes, match.n_tokens
        while nodes and not all(self._resumes(g, nodes, n_tokens, may_load) for g in self._with_blocks):
            nodes = nodes[:-1]
            n_tokens = len(nodes) * BLOCK_TOKENS
        return Match(nodes, n_tokens)

    def _resumes(self, group: int, nodes: tuple[TreeNode, ...], n_tokens: int, may_load: bool) -> bool:
        seen = nodes[self.first_seen(group, n_tokens) :]
        if may_load:
            return all(node.blocks[group] != EMPTY or node.stored_mask >> group & 1 for node in seen)
        return all(node.blocks[group] != EMPTY for node in seen)
