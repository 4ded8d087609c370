"""The error tree: every error has a status, a code and a message that says what to do."""

from __future__ import annotations

from typing import ClassVar, Self


class ImpError(Exception):
    """Root of the tree. `status` is the HTTP status, `code` a member of ErrorCode in spec/common.yaml.

    The message tells the user what to do. `param` names the offending field as a JSON path.
    """

    status: ClassVar[int] = 500
    default_code: ClassVar[str] = "internal_error"
    default_retry_after_s: ClassVar[float | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = self.default_retry_after_s if retry_after_s is None else retry_after_s


class InvalidRequest(ImpError):
    status = 400
    default_code = "invalid_value"


class InvalidJson(InvalidRequest):
    default_code = "invalid_json"


class MissingParameter(InvalidRequest):
    default_code = "missing_required_parameter"


class UnsupportedParameter(InvalidRequest):
    default_code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """`n_prompt_tokens`, `n_ctx`: as far as they are known; 0 where they aren't."""

    default_code = "context_length_exceeded"

    n_prompt_tokens = 0
    n_ctx = 0

    def sized(self, n_prompt_tokens: int, n_ctx: int) -> Self:
        self.n_prompt_tokens, self.n_ctx = n_prompt_tokens, n_ctx
        return self


class VisionUnavailable(InvalidRequest):
    default_code = "vision_unavailable"


class TemplateRefused(InvalidRequest):
    """The chat template itself raised an exception (`raise_exception`)."""

    default_code = "template_error"


class TemplateTooCostly(TemplateRefused):
    """A limit ended the template."""


class GrammarRefused(InvalidRequest):
    """A schema, regex or grammar that can't be enforced.

    `pointer`: JSON pointer of the keyword. `at`: the character of a pattern, if it is one that is to blame.
    """

    default_code = "grammar_unsupported"

    def __init__(
        self,
        message: str,
        *,
        pointer: str = "",
        param: str | None = None,
        code: str | None = None,
        at: int | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.pointer = pointer
        self.at = at


class GrammarUnsatisfiable(GrammarRefused):
    default_code = "grammar_unsatisfiable"


class GrammarTooCostly(GrammarRefused):
    """It takes more work than a grammar may take. In the middle of a reply that is counted, as a dead end is."""


class GrammarBrokenOff(GrammarTooCostly):
    """Its check was ended from outside: nothing is known of it, and nothing like it is tried for the same request."""


class Unauthorized(ImpError):
    status = 401
    default_code = "invalid_api_key"


class Forbidden(ImpError):
    status = 403
    default_code = "forbidden"


class FeatureDisabled(Forbidden):
    """A route of llama-server's that is never served."""

    default_code = "feature_disabled"


class NotFound(ImpError):
    status = 404
    default_code = "not_found"


class UnknownUrl(NotFound):
    default_code = "unknown_url"


class ModelNotFound(NotFound):
    default_code = "model_not_found"


class ModelNotLoaded(InvalidRequest):
    """It is here, and this server loads models only when it is told to (--no-models-autoload)."""

    default_code = "model_not_loaded"


class MethodNotAllowed(ImpError):
    status = 405
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow


class RequestTimeout(ImpError):
    """The request came too slowly; its connection can't be used further."""

    status = 408
    default_code = "request_timeout"


class Conflict(ImpError):
    status = 409
    default_code = "conflict"


class PayloadTooLarge(ImpError):
    status = 413
    default_code = "payload_too_large"


class UnsupportedMediaType(ImpError):
    """`accept_encoding`: the content codings that would be taken, where it is the coding that isn't."""

    status = 415
    default_code = "unsupported_media_type"

    def __init__(self, message: str, *, accept_encoding: str = "") -> None:
        super().__init__(message)
        self.accept_encoding = accept_encoding


class Overloaded(ImpError):
    status = 429
    default_code = "rate_limit_exceeded"


class InternalError(ImpError):
    status = 500
    default_code = "internal_error"


class EngineCrashed(InternalError):
    """The engine process died while it held this request."""

    default_code = "engine_crashed"


class EngineFaulted(InternalError):
    """One engine step failed; the rows of that step are gone, the engine lives on."""

    default_code = "engine_step_failed"


class GrammarDeadEnd(InternalError):
    """No token may follow although the value isn't complete. Counted; every test asserts the counter to be 0."""

    default_code = "grammar_dead_end"


class NotSupported(ImpError):
    """The server was started without this."""

    status = 501
    default_code = "not_supported"


class Unavailable(ImpError):
    status = 503
    default_code = "unavailable"
    default_retry_after_s: ClassVar[float | None] = 1.0


class GrammarMemoryFull(Unavailable):
    """The grammars of replies under way leave no memory for another one."""

    default_code = "grammar_memory_full"


class NoModel(Unavailable):
    default_code = "no_model"
    default_retry_after_s = None


class ModelLoading(Unavailable):
    default_code = "model_loading"


class ModelLoadFailed(Unavailable):
    """A model of several, or one that slept, couldn't be loaded; the message has the cause."""

    default_code = "model_load_failed"
    default_retry_after_s = 5.0


class Suspended(Unavailable):
    """An operator put the model to sleep."""

    default_code = "suspended"
    default_retry_after_s = None


class EngineRestarting(Unavailable):
    default_code = "engine_restarting"


class Draining(Unavailable):
    default_code = "draining"
    default_retry_after_s = 5.0


class UserFault(ImpError):
    """An error of the command line, a file or the machine: one line on stderr and `exit_code`."""

    exit_code: ClassVar[int] = 1


class ConfigError(UserFault):
    default_code = "invalid_config"


class HostOutOfMemory(UserFault):
    exit_code = 2
    default_code = "host_out_of_memory"


EXIT_DEVICE_LOST = 76
"""Of an engine process whose device failed in a way that leaves it no use of that; the next one can be started."""


class DeviceError(UserFault):
    exit_code = 3
    default_code = "device_error"


class ModelFileMissing(UserFault):
    exit_code = 4
    default_code = "file_not_found"


class InvalidModel(UserFault):
    exit_code = 5
    default_code = "invalid_model"


class UnsupportedModel(UserFault):
    exit_code = 6
    default_code = "unsupported_model"


class CapacityExceeded(UserFault):
    exit_code = 9
    default_code = "capacity_exceeded"
