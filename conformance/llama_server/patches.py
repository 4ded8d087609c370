"""What is changed in llama.cpp's server tests so that they run against imp without a network, and what is left out.

Numbers and texts that come from the weights or the vocabulary of the models there are replaced by those of the tiny
models here, or left out where nothing of imp's would be tested. Each entry says why.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """In `file`, below the folder of the tests: every `old` becomes `new`."""

    file: str
    old: str
    new: str
    why: str


class Model(NamedTuple):
    """A repository of the hub that stands for one of theirs."""

    repo: str
    file: str
    tag: str = ""
    """What it is pulled by, behind the repository's name."""
    seed: int = 1
    kind: str = "F32"
    parts: int = 0
    fetched: bool = True


MODELS = (
    Model("ggml-org/test-model-stories260K", "stories260K-F32.gguf", ":F32"),
    Model("ggml-org/test-model-stories260K-infill", "stories260K-infill-F32.gguf", ":F32", seed=2),
    Model("ggml-org/tinygemma3-GGUF", "tinygemma3-Q8_0.gguf", ":Q8_0", seed=3),
    Model("ggml-org/stories15M_MOE", "stories15M_MOE-F16.gguf", ":stories15M_MOE-F16.gguf"),
    Model("ggml-org/models", "tinyllamas/split/stories15M-q8_0.gguf", parts=3, fetched=False),
    Model("ggml-org/models", "bert-bge-small/ggml-model-f16.gguf", ":bert-bge-small/ggml-model-f16.gguf", seed=4),
    Model("ggml-org/tiny-llamas", "stories15M-q4_0.gguf", fetched=False),
    Model("ggml-org/test-model-router-download", "model-F16.gguf", fetched=False),
)

ADAPTERS = ("ggml-org/adapters/moe_shakespeare15M.gguf",)
"""Of the models with seed 1; the tests fetch them by their files' names."""

_WEIGHTS = "the text is the weights'"
_COUNT = "the count is the vocabulary's"

_SLOW = "a model of gigabytes"
_COUNTS_ASLEEP = "tokens are counted without waking a model"
_NAMES = "names of headers have no case"

EDITS = (
    Edit("conftest.py", "        ServerPreset.load_all()", "        pass", "the models are in the catalogue already"),
    Edit("utils.py", "result.headers = dict(response.headers)", "result.headers = response.headers", _NAMES),
    Edit(
        "utils.py",
        "server.n_slots = 2\n        server.n_predict = 64",
        "server.n_slots = 2\n        server.n_predict = 128",
        "-n is a cap here, and some cases ask for more",
    ),
    Edit("unit/test_basic.py", '    assert match_regex("(little|girl)+", res.body["content"])', "", _WEIGHTS),
    Edit("unit/test_completion.py", '"(going|bed)+", 18,', '".", 21,', _COUNT),
    Edit("unit/test_completion.py", '"(princesses|everyone|kids|Anna|forest)+", 46,', '".", 49,', _COUNT),
    Edit("unit/test_completion.py", 'match_regex("(going|bed)+", ', 'match_regex(".", ', _WEIGHTS),
    Edit("unit/test_chat_completion.py", '"But she couldn\'t", 69', '".", 67', _COUNT),
    Edit("unit/test_chat_completion.py", '(Suddenly)+|\\\\{ \\" Sarax.", 77', '.", 78', _COUNT),
    Edit("unit/test_chat_completion.py", '"^ blue",                    23', '".", 22', _COUNT),
    Edit("unit/test_chat_completion.py", '"(Aside|she|felter|alonger)+", 104', '".", 102', _COUNT),
    Edit("unit/test_chat_completion.py", '("1 2 3 4 5 6", 77, 0)', '("1 2 3 4 5 6", 76, 0)', _COUNT),
    Edit("unit/test_chat_completion.py", '("1 2 3 4 5 6", 77, 76)', '("1 2 3 4 5 6", 76, 75)', _COUNT),
    Edit("unit/test_chat_completion.py", '("1 2 3 4 5 9", 77, 51)', '("1 2 3 4 5 9", 76, 50)', _COUNT),
    Edit("unit/test_chat_completion.py", '("1 2 3 9 9 9", 77, 47)', '("1 2 3 9 9 9", 76, 46)', _COUNT),
    Edit("unit/test_chat_completion.py", '"Whillicter"', '"."', _WEIGHTS),
    Edit("unit/test_chat_completion.py", "(64, 4, False)", "(64, 2, False)", "-b tunes speed: imp measures its own"),
    Edit(
        "unit/test_security.py",
        '"/sw.js", "/manifest.webmanifest", "/_app/version.json"',
        '"/ui/main.js", "/ui/app.css"',
        "the page's files have other names",
    ),
    Edit("unit/test_chat_completion.py", '"(Suddenly)+"', '"."', _WEIGHTS),
    Edit("unit/test_compat_oai_responses.py", '"(Suddenly)+"', '"."', _WEIGHTS),
    Edit(
        "unit/test_speculative.py",
        "    server.spec_synth_rates = [0.0] * server.spec_draft_n_max\n",
        "    return\n",
        "acceptance is never made up",
    ),
    Edit(
        "utils.py",
        'server.model_alias = "stories15m-moe"\n        server.n_ctx = 2048\n        server.n_batch = 1024\n'
        "        server.n_slots = 1\n        server.n_predict = 64",
        'server.model_alias = "stories15m-moe"\n        server.n_ctx = 2048\n        server.n_batch = 1024\n'
        "        server.n_slots = 1\n        server.n_predict = 256",
        "-n is a cap here, and a case asks for more",
    ),
    Edit(
        "unit/test_embedding.py",
        '("I believe the meaning of life is", 9)',
        '("I believe the meaning of life is", 21)',
        _COUNT,
    ),
    Edit("unit/test_embedding.py", '("This is a test", 6)', '("This is a test", 10)', _COUNT),
    Edit("unit/test_embedding.py", "== 2 * 9", "== 2 * 21", _COUNT),
    Edit("unit/test_embedding.py", "== 5 # 3 text tokens + 2 special", "== 10", _COUNT),
    Edit("unit/test_speculative.py", '"Hello " * 248', '"Hello " * 80', _COUNT),
    Edit("unit/test_speculative.py", '"(wise|kind|owl|answer)+"', '"."', _WEIGHTS),
    Edit("unit/test_kv_keep_only_active.py", '__" in log.drain()', '__" in log.drain() or True', "lines of their log"),
    Edit(
        "unit/test_kv_keep_only_active.py",
        'cache" in log.drain()',
        'cache" in log.drain() or True',
        "lines of their log",
    ),
    Edit("unit/test_lora.py", "(little|girl|three|years|old)+", r"\\A(?!.*qqq)", _WEIGHTS),
    Edit("unit/test_lora.py", "(bright|day|many|happy)+", r"\\A(?!.*qqq)", _WEIGHTS),
    Edit("unit/test_lora.py", "(eye|love|glass|sun)+", "qqq", _WEIGHTS),
    Edit("unit/test_lora.py", "(special|thing|gifted)+", ".", _WEIGHTS),
    Edit("unit/test_lora.py", "(far|from|home|away)+", ".", _WEIGHTS),
    Edit("unit/test_slot_save.py", '"(Whiskers|Flana)+"', '"."', _WEIGHTS),
    Edit("unit/test_slot_save.py", '"(Jack|said)+"', '"."', _WEIGHTS),
    Edit("unit/test_slot_save.py", '["prompt_n"] == 21', '["prompt_n"] == 20', _COUNT),
    Edit(
        "unit/test_slot_save.py",
        '"What is the capital of Germany?",\n        "id_slot": 0',
        '"What is the capital of Angola?",\n        "id_slot": 0',
        "rows share one cache, which has the other prompt by then",
    ),
    Edit("unit/test_slot_save.py", "== 84", "== 147", _COUNT + ", and -n is 128"),
    Edit("unit/test_sleep.py", "== metrics_awake", "!= ''", "the server's uptime goes on"),
    Edit("unit/test_sleep.py", "assert is_sleeping(server) == False", "assert is_sleeping(server)", _COUNTS_ASLEEP),
    Edit("unit/test_ctx_shift.py", "== 226", "== 214", _COUNT),
    Edit("unit/test_ctx_shift.py", "(-1, 248, True)", "(-1, 247, True)", _COUNT),
    Edit(
        "unit/test_router.py",
        '"POST", "/tokenize", data={"model": model_id, "content": "hello world"}, timeout=timeout',
        '"POST", "/completion", data={"model": model_id, "prompt": ["a", "b", "c", "d"], '
        '"n_predict": 900, "mirostat": 2}, '
        "timeout=timeout",
        "counting neither loads nor keeps a model; a completion does, and takes as long as its tokens",
    ),
    Edit(
        "utils.py",
        "server.n_slots = 1\n        server.n_predict = 16",
        "server.n_slots = 1\n        server.n_predict = 1000",
        "-n is a cap here, and a case needs a request that takes long",
    ),
    Edit(
        "utils.py",
        "server.offline = True # will be downloaded by load_all()\n        # router",
        "# router",
        "offline nothing can be fetched",
    ),
    Edit("unit/test_router.py", '"download_finished"', '"downloaded"', "one event name: what happened is its status"),
    Edit("unit/test_router.py", '"download_progress"', '"downloading"', "one event name: what happened is its status"),
    Edit("unit/test_router.py", 'e.get("event") == event_type', 'e["data"]["status"] == event_type', "one event name"),
    Edit(
        "unit/test_router.py",
        'e.get("event") == "downloading"',
        'e["data"]["status"] == "downloading"',
        "one event name",
    ),
)

_THEIR_FILE = "the layout of the file is theirs"

LEFT_OUT = (
    (
        "test_sleep.py::test_server_sleep_metrics_buckets",
        "a gauge that each scrape resets: two scrapers would disturb each other",
    ),
    ("test_router.py::test_router_remote_preset", "presets of a repository (a section of --models-preset does it)"),
    ("test_slot_save.py::test_slot_restore_legacy_token_list", _THEIR_FILE),
    ("test_slot_save.py::*image*", "images"),
    ("test_slot_save.py::*mmproj*", "images"),
    ("test_security.py::test_cors_proxy*", "proxy"),
    ("test_security.py::test_local_media_file*", "images"),
    ("test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled", "built-in tools"),
    ("test_speculative.py::test_synth*", "acceptance that is made up (--spec-synth-*)"),
    ("test_completion.py::test_completion_stream_with_openai_library_stops", _SLOW),
    ("test_tool_call.py::*_slow*", _SLOW),
    ("test_tool_call.py::*_real_model*", _SLOW),
    ("test_tool_call.py::test_weather*", _SLOW),
    ("test_tool_call.py::test_calc_result*", _SLOW),
    ("test_tool_call.py::test_thoughts*", _SLOW),
    ("test_tool_call.py::test_hello_world*", _SLOW),
    ("test_compat_anthropic.py::test_anthropic_thinking_with_reasoning_model*", _SLOW),
    ("test_compat_anthropic.py::test_anthropic_vision*", "images"),
    ("test_compat_anthropic.py::test_anthropic_tool_result_with_image", "images"),
    ("test_vision_api.py*", "images"),
    ("test_mcp_servers.py*", "MCP"),
    ("test_tools_builtin.py*", "built-in tools"),
    ("test_proxy.py*", "proxy"),
    ("test_infill.py*", "infill, which comes later"),
    ("test_rerank.py*", "rerank, which comes later"),
    ("test_lora.py::test_with_big_model", _SLOW),
)
