"""What names in resources may be made of. Types; each is checked as a document is read."""

from typing import Annotated, TypeAlias

from msgspec import Meta

_ONE_LINE = "text of 1 to 253 characters without control characters"
_NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f]+\Z"

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=253, pattern=_NO_CONTROLS, title=_ONE_LINE)
]
Glob: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=253, pattern=_NO_CONTROLS, title=_ONE_LINE)
]
"""A name in which `*` stands for any run of characters."""
Exact: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[^\s*\x00-\x1f\x7f-\x9f]+\Z",
        title="one exact name: no spaces, and no `*`",
    ),
]
"""What one backend or model is called, where no glob is read."""
ModelWord: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9/:._-]+\Z",
        title="a model's name: letters, digits and `/ : . _ -`",
    ),
]
ResourceName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z",
        title="a name as Kubernetes has them: lower-case letters, digits, `-` and `.`",
    ),
]
