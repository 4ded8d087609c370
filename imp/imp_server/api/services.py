"""Everything one running API process holds, and what handlers may ask of it (dialects.handler.Services)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
from prometheus_client.core import Metric

from imp_server.api.adapter_scales import AdapterScales
from imp_server.api.admission import Admission
from imp_server.api.auth import KeyRing
from imp_server.api.body import ClientGone
from imp_server.api.checks import WARM_UP, Checks
from imp_server.api.contract import Contract, load
from imp_server.api.conversations_kept import KeptConversations
from imp_server.api.headers import Cors
from imp_server.api.hosts import HostCheck
from imp_server.api.model_host import THINK_END, ModelHost
from imp_server.api.models import Models
from imp_server.api.own_routes import with_own_routes
from imp_server.api.pool import WorkerPool
from imp_server.api.predictions import OpenPredictions
from imp_server.api.reports import Reports
from imp_server.api.responses_kept import ResponseShelf, response_shelf
from imp_server.api.resumable.sessions import OwnBackground, OwnStreams, StreamSessions
from imp_server.api.router.catalogue import Catalogue
from imp_server.api.router.control import Control
from imp_server.api.router.leases import current_leases
from imp_server.api.router.residency import Residency
from imp_server.api.slot_actions import act
from imp_server.api.text_side import TextSide, check_for_any_model, tokenised
from imp_server.api.validation import Validators
from imp_server.api.visit import Application
from imp_server.config import Config
from imp_server.core import (
    ChatRequest,
    ConfigError,
    ContextLengthExceeded,
    ModelLoadFailed,
    NotSupported,
    PromptRequest,
    Unavailable,
    UserFault,
)
from imp_server.core.errand import NotWanted, current_errand
from imp_server.core.owner import current_owner, is_admin
from imp_server.dialects.handler import (
    ListedAdapter,
    ModelCard,
    ReasoningEnd,
    ServerState,
    SlotOutcome,
    SlotVerb,
    TextFacts,
)
from imp_server.dialects.openai_responses.kept import Kept
from imp_server.resources import data_folder
from imp_server.text.cache_scope import session_name
from imp_server.text.model_workers import WARM_UP as TEXT_WARM_UP
from imp_server.ui.renderer import Renderer
from imp_server.workers.client import Workers
from imp_server.workers.jobs import Jobs, available_cores

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")


@dataclass(slots=True)
class ServerServices:
    """Owner of the pool, the models and the contract in force."""

    config: Config
    contract: Contract
    validators: Validators
    keys: KeyRing
    cors: Cors
    hosts: HostCheck
    models: Models
    pool: WorkerPool
    shelf: ResponseShelf
    workers: Workers
    checks: Checks
    admission: Admission
    sessions: StreamSessions
    reports: Reports
    residency: Residency
    control: Control
    renderer: Renderer = field(default_factory=Renderer)
    predictions: OpenPredictions = field(default_factory=OpenPredictions)
    check_replies: bool = False
    """Check every reply and event against the contract (tests, log.level=debug)."""
    draining: bool = False
    front: Application | None = None
    """The server itself, for requests inside requests."""

    # --- Services -------------------------------------------------------------------------------

    @property
    def responses(self) -> Kept:
        """Of the owner of the request that is being answered."""
        return self.shelf.of(current_owner())

    @property
    def conversations(self) -> KeptConversations:
        """Of the owner of the request that is being answered."""
        return KeptConversations(self.shelf, current_owner())

    @property
    def background(self) -> OwnBackground:
        """Of the owner of the request that is being answered."""
        return OwnBackground(self.sessions, current_owner())

    @property
    def streams(self) -> OwnStreams:
        """Of the owner of the request that is being answered."""
        return self.sessions.of(current_owner())

    def _host(self, model: str) -> ModelHost | None:
        """As Models.find, but None where there is no model at all, which probes tell and don't fail for."""
        return self.models.find(model) if any(self.models) else None

    def state(self, model: str = "") -> ServerState:
        if self.models.are_several and not model:
            return self._state_of_all()
        host = self._host(model)
        if host is None:
            return ServerState("draining" if self.draining else "no_model", "", 0)
        state = "draining" if self.draining else host.state
        failure = host.failure.message if host.failure else host.trouble
        return ServerState(
            state,
            host.id,
            host.queue_depth,
            host.stage,
            host.stage_value,
            failure,
            self._trouble() or self._stall(host),
            is_rested=host.info is not None and host.state in ("loading", "sleeping"),
            idle_unload_s=host.config.engine.idle_unload_s,
        )

    def _state_of_all(self) -> ServerState:
        """A server of several models is ready whichever are in memory."""
        stalls = [stall for host in self.models if (stall := self._stall(host))]
        return ServerState(
            "draining" if self.draining else "ready",
            "",
            sum(host.queue_depth for host in self.models),
            trouble=self._trouble() or next(iter(stalls), ""),
            idle_unload_s=self.config.engine.idle_unload_s,
            loaded={host.id: host.state == "ready" for host in self.models},
        )

    def _stall(self, host: ModelHost) -> str:
        limit_s = self.config.server.stuck_thread_s
        if limit_s and host.client.stalled_s > limit_s:
            return f"the engine has made no token for {host.client.stalled_s:.0f} s"
        return ""

    def _trouble(self) -> str:
        """What no longer works and won't by itself; "" as long as requests are served."""
        if self.pool.lane.is_lost:
            return f"all threads that prepare requests are stuck ({self.pool.lane.name}); restart the server"
        if self.shelf.is_lost:
            return f"all threads that keep responses are stuck ({self.shelf.lane.name}); look at responses.store_path"
        if self.workers.is_failing:
            return "the processes that check grammars can't be started; the log says why"
        return ""

    def look_at_lanes(self) -> None:
        """Find threads that got stuck. Called about once a second."""
        self.pool.lane.look()
        self.shelf.lane.look()

    def cards(self) -> tuple[ModelCard, ...]:
        return tuple(host.card() for host in self.models if not host.is_hidden)

    def card(self, model: str) -> ModelCard:
        return self.models.find(model).card()

    async def awake(self, model: str) -> ModelHost:
        """The model, in memory until the request that is being answered ends.

        Raises as Models.find and Residency.awake, NotWanted once the client has left.
        """
        host = self.models.find(model)
        leases = current_leases()
        if leases is not None:
            leases.take(host)
        if self.residency.is_up(host):
            return host
        errand = current_errand()
        waiting = asyncio.ensure_future(self.residency.awake(host, host.config.server.request_timeout_s or None))
        try:
            with errand.ending_with(partial(_cancel, waiting)):
                await waiting
        except asyncio.CancelledError:
            waiting.cancel()
            if errand.is_over:
                raise NotWanted from None
            raise
        return host

    async def ready_card(self, model: str) -> ModelCard:
        return (await self.awake(model)).card()

    async def _text(self, host: ModelHost) -> TextSide:
        """Without its engine, of a model that isn't in memory. Raises ModelLoadFailed for one that has no text."""
        if host.on_demand and host.text is None:
            if host.broken:
                raise ModelLoadFailed(f"model {host.id!r} can't be loaded: {host.broken}")
            try:
                await host.open_text(self.pool)
            except UserFault as error:
                raise ModelLoadFailed(f"model {host.id!r} can't be loaded: {error.message}") from None
        side = host.ready_text()
        leases = current_leases()
        if leases is not None:
            leases.read(host)
        return side

    def text_facts(self, model: str) -> TextFacts:
        side = self.models.find(model).ready_text()
        return TextFacts(side.chat_template, side.sampling_defaults, side.template_facts)

    def document(self) -> dict[str, Any]:
        return self.contract.document

    async def stats(self, model: str = "") -> tuple[dict[str, float], tuple[dict[str, Any], ...]]:
        told: dict[str, float] = {}
        rows: tuple[dict[str, Any], ...] = ()
        if self.models.are_several and not model:
            for found in await asyncio.gather(*(host.stats(current_owner()) for host in self.models)):
                told = {name: told.get(name, 0.0) + found.counters.get(name, 0.0) for name in told | found.counters}
        elif host := self._host(model):
            told, rows = await host.stats(current_owner())
        own = {
            **self.checks.counters,
            **self.checks.jobs.seconds,
            **self.reports.counters(),
            "queued_prompt_tokens": float(self.admission.queued.n_tokens),
        }
        return {**own, **told}, rows

    def measured(self) -> Iterator[Metric]:
        shown = [host.id for host in self.models if host.state == "ready" or not self.models.are_several]
        return self.reports.measures.collect(shown)

    def pool_of(self, host: ModelHost, *, renders: bool) -> WorkerPool:
        """For work of its text side; `renders`: with its template, too."""
        return host.own_pool(renders=renders) or self.pool

    async def tokenize(
        self, model: str, pieces: Sequence[str | int], *, add_special: bool, parse_special: bool
    ) -> list[int]:
        host = self.models.find(model)
        side = await self._text(host)
        pool = self.pool_of(host, renders=False)
        work = pool.run(tokenised, side, pieces, add_special=add_special, parse_special=parse_special)
        ids = await self._in_time(host, work)
        self._check_length(host, len(ids), "content")
        return ids

    def token_writer(self, model: str) -> Callable[[int], bytes]:
        return self.models.find(model).ready_text().vocabulary.plain_bytes

    async def detokenize(self, model: str, ids: list[int]) -> str:
        host = self.models.find(model)
        side = await self._text(host)
        self._check_length(host, len(ids), "tokens")
        return await self._in_time(host, self.pool_of(host, renders=False).run(side.detokenize, ids))

    async def render(self, request: ChatRequest) -> str:
        check_for_any_model(request)
        host = self.models.find(request.model)
        side = await self._text(host)
        return await self._in_time(host, self.pool_of(host, renders=True).run(side.render, owned(request)))

    async def count_tokens(self, request: ChatRequest) -> int:
        check_for_any_model(request)
        host = self.models.find(request.model)
        side = await self._text(host)
        n_tokens = await self._in_time(host, self.pool_of(host, renders=True).run(side.count, owned(request)))
        self._check_length(host, n_tokens, "messages")
        return n_tokens

    def _check_length(self, host: ModelHost, n_tokens: int, param: str) -> None:
        """The limit that prompts have. Raises ContextLengthExceeded."""
        most = host.config.server.max_input_tokens
        if 0 < most < n_tokens:
            raise ContextLengthExceeded(
                f"this server takes at most {most} tokens (--max-input-tokens), and these are {n_tokens}: send fewer",
                param=param,
            )

    async def _in_time(self, host: ModelHost, work: Awaitable[T]) -> T:
        """The result of work for a request. Raises ClientGone; Unavailable at the request's deadline."""
        errand = current_errand()
        try:
            async with asyncio.timeout(host.config.server.request_timeout_s or None):
                return await work
        except NotWanted:
            raise ClientGone from None
        except TimeoutError:
            errand.end()
            raise Unavailable(
                "making this prompt took longer than server.request_timeout_s", retry_after_s=5.0
            ) from None

    async def end_reasoning(self, name: str) -> ReasoningEnd:
        found = self.models.reply(name, current_owner())
        if found is None:
            return "unknown"
        host, reply = found
        if not reply.terms.reasoning_control:
            return "not_allowed"
        verdict = await reply.end_reasoning()
        host.counters[THINK_END] += verdict == "ending"
        return verdict

    async def close_session(self, session_id: str) -> int:
        name = session_name(current_owner(), session_id)
        return sum([await host.client.close_session(name) for host in self.models])

    async def rendered(self, blocks: Sequence[str], client: str) -> list[list[Any] | None] | None:
        return await self.renderer.rendered(blocks, client)

    def adapters(self, model: str) -> tuple[ListedAdapter, ...]:
        host = self._host(model)
        return () if host is None else host.adapters.listed()

    def scale_adapters(self, model: str, scales: Mapping[int, float]) -> None:
        host = self._host(model)
        adapters = AdapterScales(self.config.adapters) if host is None else host.adapters
        adapters.change(scales)

    async def slot_action(self, model: str, action: SlotVerb, slot: int, filename: str = "") -> SlotOutcome:
        self.models.find(model)
        if not self.config.prefix_cache.slots_path:
            raise NotSupported("this server keeps no slots in files (prefix_cache.slots_path, --slot-save-path)")
        return await act(await self.awake(model), current_owner(), action, slot, filename, is_admin=is_admin())

    async def in_pool(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.pool.run(function, *args, **kwargs)


def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()


R = TypeVar("R", bound=ChatRequest | PromptRequest)


def owned(request: R) -> R:
    """The request as that of the owner who is being answered: his sessions and transcripts are meant."""
    return msgspec.structs.replace(request, cache=msgspec.structs.replace(request.cache, owner=current_owner()))


def new_workers() -> Workers:
    """For checks of grammars, and for what models bring along."""
    return Workers((WARM_UP, TEXT_WARM_UP))


def build_services(
    config: Config,
    hosts: Sequence[ModelHost] = (),
    *,
    check_replies: bool = False,
    workers: Workers | None = None,
    catalogue: Catalogue | None = None,
) -> ServerServices:
    """Loads and compiles the contract. `catalogue`: of a server of several models, which brings the hosts then.

    Raises ConfigError.
    """
    limits = {f"{section}.{key}": value for section, values in config.plain().items() for key, value in values.items()}
    limits["server.max_n"] = min(config.server.max_n, config.scheduler.max_rows or config.server.max_n)
    server = config.server
    ring = KeyRing(server.api_key, admin=server.admin_api_key, file=server.api_key_file)
    contract = load(data_folder("spec"), limits)
    if config.server.habits == "llama-server":
        contract = reshaped(contract, "openai", "llamacpp")
        schemas = contract.document["components"]["schemas"]
        schemas["OpenAIError"] = schemas["LlamaServerError"]
        schemas["LlamaOneText"]["anyOf"][0]["minLength"] = 0
        schemas["MessagesRequest"]["properties"]["messages"]["minItems"] = 0
        schemas["ChatResponseFormat"]["oneOf"][3]["properties"]["json_schema"]["required"] = ["schema"]
    contract = with_own_routes(contract, config.server)
    if config.metrics.require_auth:
        contract = closed(contract, "/metrics")
    if ring.is_open:
        without_keys(contract.document, admin=ring.has_admin)
    if config.server.model_names == "any":
        without_model_names(contract)
    if catalogue is not None and not config.router.models_autoload:
        contract = loaded_by_hand(contract)
    validators = Validators(contract)
    validators.compile_requests()
    pool = WorkerPool(stuck_s=config.server.stuck_thread_s)
    models, residency, control = _models(config, hosts, pool, catalogue)
    workers = workers or new_workers()
    return ServerServices(
        config=config,
        contract=contract,
        validators=validators,
        keys=ring,
        cors=Cors(server),
        hosts=HostCheck(config.server, has_keys=not ring.is_open),
        models=models,
        pool=pool,
        shelf=response_shelf(config),
        workers=workers,
        checks=Checks(Jobs(workers, n_quick=available_cores())),
        admission=Admission(config.server),
        sessions=StreamSessions(config.streams),
        reports=Reports(config),
        residency=residency,
        control=control,
        check_replies=check_replies or config.log.level == "debug",
    )


def _models(
    config: Config, hosts: Sequence[ModelHost], pool: WorkerPool, catalogue: Catalogue | None
) -> tuple[Models, Residency, Control]:
    knobs, any_name, several = config.router, config.server.model_names == "any", catalogue is not None
    if several and any_name:
        raise ConfigError("--model-names any is for a server of one model; give one of several the alias *")
    models = Models(hosts if catalogue is None else catalogue.hosts(), any_name=any_name, are_several=several)
    room = None if catalogue is None else catalogue.room
    residency = Residency(lambda: models, pool, room, autoload=not several or knobs.models_autoload)
    keep_alive_s = config.streams.keep_alive_s
    return (
        models,
        residency,
        Control(models, residency, pool, keep_alive_s, catalogue, stop_timeout_s=knobs.stop_timeout_s),
    )


def loaded_by_hand(contract: Contract) -> Contract:
    """The contract of a server that loads no model by itself, which each generation may be told."""
    more = frozenset(("model_not_loaded",))
    told = [replace(one, semantic_errors=one.semantic_errors | more) for one in contract.operations if one.is_inference]
    by_id = {one.id: one for one in told}
    return replace(contract, operations=tuple(by_id.get(one.id, one) for one in contract.operations))


def closed(contract: Contract, path: str) -> Contract:
    """The contract with the operations of `path` asking for a key."""
    for operation in contract.document["paths"][path].values():
        operation["security"] = [{"bearer": []}, {"apiKey": []}]
    operations = [replace(one, public=False) if one.path == path else one for one in contract.operations]
    return replace(contract, operations=tuple(operations))


def reshaped(contract: Contract, shape: str, other: str) -> Contract:
    """The contract with errors of one shape in another."""
    operations = [replace(one, error_shape=other) if one.error_shape == shape else one for one in contract.operations]
    prefixes = [(prefix, other if found == shape else found) for prefix, found in contract.prefixes]
    return replace(contract, operations=tuple(operations), prefixes=tuple(prefixes), other_shape=other)


def without_model_names(contract: Contract) -> None:
    """A server on which every name means its model lets requests leave the name out."""
    for operation in contract.operations:
        for pointer in operation.body_pointers.values():
            schema = contract.resolve(pointer)
            if "model" in schema.get("properties", {}):
                schema["properties"]["model"] = {"type": ["string", "null"]}
                schema["required"] = [name for name in schema.get("required", ()) if name != "model"]


def without_keys(document: dict[str, Any], *, admin: bool) -> None:
    """A server without keys serves a document without security, which is what it does. `admin`: it has keys for what
    changes it."""
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict) and not (admin and operation.get("x-changes-server")):
                operation.pop("security", None)
