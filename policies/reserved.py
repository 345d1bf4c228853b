"""What a policy may not set or ask for, because the gateway sets it or it ends there. Pure."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one connection, in lower case."""

HEADERS = HOP_BY_HOP | {
    "accept-encoding",  # the answer must be readable
    "api-key",  # credentials name the file that holds it
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "x-api-key",
    "x-data-parallel-rank",  # the decision's
    "x-request-id",
    "x-vllm-priority",
}
"""Headers that `set` may not add."""

PARAMETERS = frozenset(
    {
        "cache_salt",  # whose cached blocks a request may use
        "ec_transfer_params",
        "kv_transfer_params",  # replaces the prompt
        "messages",
        "model",  # what `consider` and `split` choose
        "priority",
        "prompt",
        "request_id",
        "stream",  # what the client waits for
        "stream_options",
        "vllm_xargs",
    }
)
"""Parameters of a body that `set` may not write."""
