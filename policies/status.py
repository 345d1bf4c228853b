"""The form of a resource's status: conditions as every Kubernetes API has them, and the form of the
resource that is in force. Values only.
"""

from typing import Any

MAX_CONDITIONS = 8

CONDITION: dict[str, Any] = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {
            "type": "string",
            "description": "What it is about, such as `Accepted`.",
            "maxLength": 316,
        },
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "description": "The resource's generation that it was said of.",
        },
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {
            "type": "string",
            "description": "A word for machines.",
            "minLength": 1,
            "maxLength": 1024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
        "message": {"type": "string", "description": "A sentence for people.", "maxLength": 32768},
    },
}

IN_FORCE: dict[str, Any] = {
    "type": "object",
    "description": "The earlier form that is in force, where the present one cannot be.",
    "required": ["generation", "spec"],
    "properties": {
        "generation": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "description": "The resource's generation that had this form.",
        },
        "spec": {
            "type": "object",
            "description": "What it was.",
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}
