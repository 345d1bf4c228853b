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
        "add_generation_prompt",  # what the prompt is made of is read before policies are
        "add_special_tokens",
        "best_of",
        "cache_salt",  # whose cached blocks a request may use
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "echo",
        "ec_transfer_params",
        "kv_transfer_params",  # replaces the prompt
        "messages",
        "mm_processor_kwargs",
        "n",  # how many answers a request is accounted for
        "model",  # what `consider` and `split` choose
        "priority",
        "prompt",
        "prompt_logprobs",
        "request_id",
        "stream",  # what the client waits for
        "stream_options",
        "tools",
        "vllm_xargs",
    }
)
"""Parameters of a body that `set` may not write."""
