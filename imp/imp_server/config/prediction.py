"""What prediction services of clouds put into the environment of a container that serves a model."""

from __future__ import annotations

import msgspec

from imp_server.config.environment import environment
from imp_server.config.tree import Config
from imp_server.core import ConfigError


def for_predictions(config: Config) -> Config:
    """The configuration with what AIP_* says, if AIP_MODE is PREDICTION: the service knows the port and the paths, and
    nothing else counts then. Raises ConfigError."""
    if environment("AIP_MODE") != "PREDICTION":
        return config
    server = config.server
    port = environment("AIP_HTTP_PORT") or str(server.port)
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"AIP_HTTP_PORT {port} is no port")
    routes = (environment("AIP_PREDICT_ROUTE") or server.predict_route or "/predict", environment("AIP_HEALTH_ROUTE"))
    predict, health = (f"/{route.strip('/')}" if route.strip("/") else "" for route in routes)
    changed = msgspec.structs.replace(
        server, port=int(port), predict_route=predict, health_route=health or server.health_route
    )
    return msgspec.structs.replace(config, server=changed)
