"""Every knob, typed, in sections; the only reader of the environment.

A field of a section struct with a string below it is a knob: its flag, its variable, its TOML key, its help
and its line in docs/config.md are made from it. Flags > environment > TOML file > default.
"""

from imp_server.config.environment import child_environment, environment, imp_home, imp_variables
from imp_server.config.tree import Config, EngineConfig

__all__ = ["Config", "EngineConfig", "child_environment", "environment", "imp_home", "imp_variables"]
