"""Knobs of the API process."""

from __future__ import annotations

from typing import Literal

import msgspec

from imp_server.config.types import Count, Delay, Norm, Port, Positive, Seconds, Secrets, Words


class ServerSettings(msgspec.Struct, frozen=True):
    """The HTTP side: where it listens, who may ask, and how much."""

    host: Words = ("127.0.0.1",)
    """Address to listen on, or unix:PATH for a Unix socket; repeatable. 0.0.0.0 = every interface."""
    port: Port = 8080
    """TCP port; 0 = any free one (printed when ready)."""
    api_prefix: str = ""
    """Path that every route begins with, like /llm, for a proxy that passes paths on as they are."""
    model_names: Literal["strict", "any"] = "strict"
    """strict = a request names the model it means; any = every name, and none, is answered by the loaded model."""
    habits: Literal["imp", "llama-server"] = "imp"
    """llama-server = its shape of errors and its small ways in replies (docs/llama-server.md)."""
    ui: bool = True
    """Serve the page for people at / and the forms of /docs; off = two plain pages without scripts, with llama-server's
    habits none."""
    slots: bool = True
    """Answer /slots; off = 501."""
    props: bool = False
    """Take POST /props, which changes nothing; off = 501."""
    tools: bool = True
    """Take requests with tools; off = 400."""
    only_embeddings: bool = False
    """Answer requests for embeddings and no others that need the model; off = both."""
    prefill_assistant: bool = False
    """An assistant message at the end of a chat is gone on with; off = where continue_final_message asks for it."""
    verbose_replies: bool = False
    """Chats are answered with `__verbose`, the raw prompt and text beside the reply; off = where a request asks for it
    with `verbose`."""
    api_key: Secrets = ()
    """Key that clients must send as Bearer or x-api-key; repeatable. None = open to everybody who can connect."""
    api_key_file: str = ""
    """File with one API key per line; # starts a comment. Read anew when it has changed."""
    admin_api_key: Secrets = ()
    """Key for routes that change the server, and for priority over other keys; repeatable. None = every key may do the
    former; without any key only this machine may."""
    ssl_certfile: str = ""
    """PEM file with the certificate, and those that lead to its root: the server speaks HTTPS."""
    ssl_keyfile: str = ""
    """PEM file with the certificate's private key; empty = it is in the same file."""
    allowed_hosts: Words = ()
    """Further names in the Host header, or * for all. Checked without a key on loopback addresses only, where pages of
    strangers could reach the server otherwise; .example.com = every name below it."""
    cors_origins: Words = ()
    """Browser origins that may call the server, exact, localhost for all of this machine, or * for all; none = no page
    of another site. * is never for routes that change the server."""
    cors_methods: Words = ()
    """Methods that pages of other sites are told they may use; none = those of the route."""
    cors_headers: Words = ()
    """Headers that pages of other sites are told they may send, or *; none = those that they ask for."""
    cors_credentials: Literal["listed", "on", "off"] = "listed"
    """Whether pages of other sites may send credentials: those that cors_origins lists, all that may call, none."""
    predict_route: str = ""
    """Path of POST {instances: [...]}, as prediction services of clouds send it; empty = none. AIP_MODE=PREDICTION sets
    it to AIP_PREDICT_ROUTE, or /predict."""
    health_route: str = ""
    """Further path of /health; empty = none. AIP_MODE=PREDICTION sets it to AIP_HEALTH_ROUTE."""
    max_body_mib: Positive = 100
    """Largest request body in MiB; a larger one is answered with 413."""
    max_json_depth: Positive = 64
    """Deepest nesting of arrays and objects in a request body."""
    max_tokens: Positive = 8192
    """Tokens generated for a request that names no limit."""
    most_tokens: Count = 0
    """Most tokens generated for a request, whatever limit it names; 0 = any number."""
    max_input_tokens: Count = 0
    """Longest prompt in tokens; 0 = what the context holds."""
    max_n: Positive = 8
    """Most choices (n) per request."""
    max_messages: Positive = 10000
    """Most messages per request."""
    max_stop: Positive = 16
    """Most stop strings per request."""
    embd_normalize: Norm = 2
    """Norm of embeddings whose request names none: 2 unit length, 1 sum of magnitudes, 0 largest, -1 as they are, more
    = that p-norm."""
    max_n_probs: Positive = 100
    """Most likeliest tokens told at each place of a raw completion (n_probs)."""
    max_tools: Positive = 1024
    """Most tools per request."""
    max_batch_items: Positive = 512
    """Most embedding inputs, rerank documents or scored items per request."""
    max_vector_mib: Positive = 16
    """Most MiB of numbers in a reply with embeddings."""
    max_logit_bias: Positive = 1024
    """Most logit_bias entries per request."""
    max_concurrent: Count = 64
    """Requests in flight; one more is answered with 429. 0 = no limit."""
    max_queued_tokens: Count = 0
    """Prompt tokens waiting for prefill; a request beyond it is answered with 429. 0 = no limit."""
    request_timeout_s: Seconds = 300
    """Seconds after which a generation ends with finish reason `length`; 0 = never."""
    drain_timeout_s: Seconds = 60
    """Seconds that running requests get to finish after SIGTERM; two more and the server has ended, whatever hangs."""
    stuck_thread_s: Seconds = 30
    """Seconds with one thing after which a thread counts as stuck and another takes its place; 0 = never."""
    keep_alive_s: Seconds = 75
    """Seconds an idle HTTP connection is kept open."""
    head_timeout_s: Delay = 10
    """Seconds that the head of a request may take in all; a new connection has as long to begin with one."""
    body_timeout_s: Delay = 30
    """Seconds without progress after which a request body, or a WebSocket message, is given up."""
    min_body_kib_s: Count = 4
    """KiB per second that a request body must bring on average after its first ten seconds; 0 = any."""
    send_timeout_s: Delay = 60
    """Seconds that a client may read nothing while an answer waits to be sent."""
    max_connections: Positive = 1024
    """Most connections at once, or what descriptors allow. The oldest without a request goes first."""
    max_connections_per_address: Count = 0
    """Most connections of one address; never of loopback, Unix sockets and trusted proxies. 0 = no limit."""
    rate_limit: Count = 0
    """Requests per minute of one address; never of loopback and Unix sockets. One more is a 429. 0 = no limit."""
    trusted_proxy: Words = ()
    """Address or network of a proxy whose X-Forwarded-For is believed, or unix; repeatable."""
    max_body_memory_mib: Positive = 512
    """MiB that request bodies, WebSocket messages and the stored conversations that requests name may take together,
    also while being received; beyond it: 503."""
    max_json_containers: Positive = 100000
    """Most arrays and objects in a request body."""
    max_json_values: Positive = 4000000
    """Most values of any kind in a request body."""


class ResponsesSettings(msgspec.Struct, frozen=True):
    """The store behind /v1/responses and /v1/conversations, and WebSocket connections."""

    store: Literal["on", "off"] = "on"
    """Keep responses for previous_response_id and retrieval."""
    store_path: str = ""
    """SQLite file of the store; empty = responses.sqlite under IMP_HOME."""
    store_ttl_s: Count = 2592000
    """Seconds a response is kept, counted from its creation; 0 = store off."""
    store_max_entries: Count = 10000
    """Most responses kept, and most conversations; the key that has most gives its oldest first. 0 = store off."""
    store_max_mib: Count = 256
    """Most MiB of responses kept, and as many of conversations; the key that has most gives its oldest first. 0 = store
    off."""
    sockets: Literal["on", "off"] = "on"
    """Take WebSocket connections on /v1/responses."""
    max_sockets: Count = 64
    """WebSocket connections open at once; one more is answered with 429. 0 = no limit."""
    socket_message_mib: Count = 0
    """Largest message of a WebSocket connection in MiB; 0 = server.max_body_mib."""
    socket_idle_s: Seconds = 300
    """Seconds after which a WebSocket connection that asks nothing is closed; 0 = never."""
    socket_age_s: Seconds = 3600
    """Seconds after which a WebSocket connection takes no more requests; 0 = never."""


class StreamSettings(msgspec.Struct, frozen=True):
    """Server-sent events."""

    keep_alive_s: Seconds = 15
    """Seconds of silence after which a comment (or the dialect's ping) is sent; 0 = never."""
    ring_kib: Positive = 4096
    """KiB of a resumable stream that can be asked for again; the oldest bytes go first."""
    max_sessions: Positive = 1024
    """Most resumable streams. The oldest that has ended makes room; where all are being written it is a 429."""
    max_mib: Positive = 256
    """MiB that all resumable streams may hold together."""
    replay_s: Seconds = 300
    """Seconds that a resumable stream can be read after its end."""
    detached_s: Seconds = 600
    """Seconds without a reader after which a resumable stream that is being written is ended; 0 = never."""


class RouterSettings(msgspec.Struct, frozen=True):
    """Several models behind one server, each in a process of its own (docs/router.md)."""

    models_dir: str = ""
    """Folder of models. Without MODEL all of them are served; with it, names are looked up there, too."""
    models_preset: str = ""
    """INI file with a section for each model: its name, its file, its knobs. Serves those models."""
    models_max: Count = 4
    """Most models in memory at once; 0 = as many as memory holds."""
    models_autoload: bool = True
    """A request loads the model that it names; off = only POST /models/load does."""
    memory_mib: Count = 0
    """MiB that loaded models may take together; 0 = nine tenths of what is free at start."""
    catalogue: bool = True
    """Serve what imp has fetched, too."""
    stop_timeout_s: Seconds = 10
    """Seconds that running requests get to finish when their model is taken out of memory by hand."""


class LogSettings(msgspec.Struct, frozen=True):
    """Log lines on stderr, in which prompts and keys never are, and files about requests."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["pretty", "json"] = "pretty"
    """For people, or one JSON object per line."""
    requests: str = ""
    """File that gets a line of JSON for every request; without what was asked and answered."""
    request_texts: bool = False
    """The lines of log.requests hold prompts and answers, too."""
    prompts_dir: str = ""
    """Folder that gets a file with the prompt, as the model sees it, for every request that generates."""


class MetricsSettings(msgspec.Struct, frozen=True):
    """GET /metrics, and traces."""

    enabled: bool = True
    """Answer /metrics; off = 501."""
    require_auth: bool = False
    """/metrics asks for a key, too, on a server that has keys."""
    otlp_endpoint: str = ""
    """Address of an OpenTelemetry collector, like http://127.0.0.1:4318, that gets a span for each reply; needs
    imp-server[otel]."""
    otlp_service_name: str = "imp-server"
    """What the spans say they are of."""
