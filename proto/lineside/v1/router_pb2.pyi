from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("method", "path", "headers", "body", "tenant", "subset", "meters")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBSET_FIELD_NUMBER: _ClassVar[int]
    METERS_FIELD_NUMBER: _ClassVar[int]
    method: str
    path: str
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    body: bytes
    tenant: str
    subset: _containers.RepeatedScalarFieldContainer[str]
    meters: bool
    def __init__(self, method: _Optional[str] = ..., path: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., body: _Optional[bytes] = ..., tenant: _Optional[str] = ..., subset: _Optional[_Iterable[str]] = ..., meters: bool = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("decision_id", "routed", "refused", "answered")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    routed: Routed
    refused: Refused
    answered: Answered
    def __init__(self, decision_id: _Optional[str] = ..., routed: _Optional[_Union[Routed, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., answered: _Optional[_Union[Answered, _Mapping]] = ...) -> None: ...

class Routed(_message.Message):
    __slots__ = ("target", "fallbacks")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    target: Target
    fallbacks: _containers.RepeatedCompositeFieldContainer[Target]
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., fallbacks: _Optional[_Iterable[_Union[Target, _Mapping]]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("endpoint", "backend", "model", "set_headers", "remove_headers", "body", "url")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SET_HEADERS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    backend: str
    model: str
    set_headers: _containers.RepeatedCompositeFieldContainer[Header]
    remove_headers: _containers.RepeatedScalarFieldContainer[str]
    body: bytes
    url: str
    def __init__(self, endpoint: _Optional[str] = ..., backend: _Optional[str] = ..., model: _Optional[str] = ..., set_headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., remove_headers: _Optional[_Iterable[str]] = ..., body: _Optional[bytes] = ..., url: _Optional[str] = ...) -> None: ...

class Answered(_message.Message):
    __slots__ = ("status", "headers", "body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    status: int
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    body: bytes
    def __init__(self, status: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., body: _Optional[bytes] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("status", "headers", "body", "reason")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: int
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    body: bytes
    reason: str
    def __init__(self, status: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., body: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("decision_id", "event", "age_ms", "prompt_tokens", "cached_tokens", "completion_tokens", "status", "backend")
    class Event(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FIRST_TOKEN: _ClassVar[ReportRequest.Event]
        FINISHED: _ClassVar[ReportRequest.Event]
        ABORTED: _ClassVar[ReportRequest.Event]
        FAILED: _ClassVar[ReportRequest.Event]
        UNSEEN: _ClassVar[ReportRequest.Event]
    FIRST_TOKEN: ReportRequest.Event
    FINISHED: ReportRequest.Event
    ABORTED: ReportRequest.Event
    FAILED: ReportRequest.Event
    UNSEEN: ReportRequest.Event
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    event: ReportRequest.Event
    age_ms: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    status: int
    backend: str
    def __init__(self, decision_id: _Optional[str] = ..., event: _Optional[_Union[ReportRequest.Event, str]] = ..., age_ms: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., status: _Optional[int] = ..., backend: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
