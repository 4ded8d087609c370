"""The walk over an OutputPlan: the one place that decides where a completion's segments begin and end."""

from imp_server.plan_walk.walker import Piece, PlanWalker, WalkEnd

__all__ = ["Piece", "PlanWalker", "WalkEnd"]
