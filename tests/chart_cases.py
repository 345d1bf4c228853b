"""Values to render the chart with, and values that it must refuse."""

from typing import Any

ENGINES = [
    {"url": "http://vllm-0.vllm.inference.svc:8000", "node": "node-a"},
    {
        "url": "http://vllm-1.vllm.inference.svc:8000",
        "node": "node-b",
        "api_key_file": "/etc/lineside/secrets/vllm/key",
        "gpus": ["GPU-0f8b6e1a-77c4-4f1d-8f0e-3b1a9d2c4e55"],
    },
]
GATEWAYS = {"allowed": [{"name": "envoy", "token_file": "/etc/lineside/secrets/envoy/token"}]}
POLICY = """\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: all }
spec: { rules: [ { name: all, route: {} } ] }
"""

GOOD: dict[str, dict[str, Any]] = {
    "defaults": {},
    "engines, keys and policies": {
        "coordinator": {
            "config": {"engines": ENGINES, "drain_s": 60, "timeouts": {"total_s": 600}},
            "kubernetes": {"enabled": False},
            "secrets": ["vllm"],
            "resources": {"all.yaml": POLICY},
            "env": [
                {
                    "name": "OPENAI_KEY",
                    "valueFrom": {"secretKeyRef": {"name": "openai", "key": "key"}},
                }
            ],
        }
    },
    "policies of one's own": {
        "coordinator": {"resourcesConfigMap": "policies", "kubernetes": {"enabled": False}}
    },
    "tokens in the release": {
        "tokens": {"create": True, "agentToken": "a", "adminToken": "b", "secret": "mine"},
        "agent": {"proof": "token"},
    },
    "agents' streams in plaintext, to whoever comes": {
        "tls": {"source": "plaintext"},
        "agent": {"proof": "none"},
    },
    "agents' certificate from cert-manager": {
        "tls": {"source": "cert-manager", "issuer": {"name": "ca"}, "secret": "agents"}
    },
    "tokens that name no node": {"agent": {"needsNode": False}},
    "resources of other namespaces": {
        "coordinator": {
            "kubernetes": {
                "namespaces": ["models", "inference"],
                "podDeletionCost": True,
                "engineKeySecret": "vllm",
                "keyVariables": ["OPENAI_KEY"],
            }
        }
    },
    "resources of every namespace": {"coordinator": {"kubernetes": {"namespaces": ["*"]}}},
    "nothing asked of the API server": {
        "coordinator": {"kubernetes": {"enabled": False}, "config": {"engines": ENGINES[:1]}},
        "agent": {"proof": "token"},
    },
    "gateways, self-signed": {
        "coordinator": {
            "route": {"enabled": True},
            "config": {"gateways": GATEWAYS},
            "secrets": ["envoy"],
        }
    },
    "gateways, a secret": {
        "coordinator": {
            "route": {"enabled": True, "tls": {"source": "secret", "secret": "tls"}},
            "config": {"gateways": GATEWAYS},
            "secrets": ["envoy"],
        }
    },
    "gateways, cert-manager": {
        "coordinator": {
            "route": {
                "enabled": True,
                "tls": {"source": "cert-manager", "issuer": {"name": "ca", "kind": "Issuer"}},
            },
            "config": {"gateways": GATEWAYS},
            "secrets": ["envoy"],
        }
    },
    "three coordinators": {
        "coordinator": {"replicas": 3, "config": {"store": "etcd:http://etcd.lineside.svc:2379"}}
    },
    "coordinators as the load asks": {
        "coordinator": {
            "autoscaling": {"enabled": True, "minReplicas": 3, "loopLagSeconds": 0.05},
            "config": {"store": "etcd:https://a:2379,https://b:2379"},
        }
    },
    "a volume": {"coordinator": {"persistence": {"enabled": True, "storageClass": "fast"}}},
    "no agents": {"agent": {"enabled": False}, "monitoring": {"enabled": True}},
    "everything about pods": {
        "images": {"tag": "1.2.3", "pullSecrets": ["registry"], "pullPolicy": "Always"},
        "coordinator": {
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "podAnnotations": {"a": "b"},
            "service": {"type": "LoadBalancer", "annotations": {"lb": "internal"}},
            "preStopSeconds": 0,
            "spread": {"topologyKeys": []},
        },
        "agent": {
            "gpu": {"runtimeClass": "nvidia"},
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "priorityClass": "system-node-critical",
            "checkpoints": False,
            "config": {"scrape_busy_s": 0.25},
            "podAnnotations": {"a": "b"},
            "extraVolumes": [{"name": "ipc", "hostPath": {"path": "/run/vllm"}}],
            "extraVolumeMounts": [{"name": "ipc", "mountPath": "/run/vllm"}],
        },
    },
    "GPUs by the kubelet's word": {
        "agent": {
            "gpu": {"podResources": True, "podResourcesDir": "/var/lib/k0s/kubelet/pod-resources"}
        }
    },
    "a closed network": {
        "networkPolicies": {
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
            "gateways": [{"namespaceSelector": {"matchLabels": {"team": "gw"}}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"team": "mon"}}}],
            "engines": {
                "selector": {"app": "vllm"},
                "namespaces": ["models", "inference"],
                "gateways": [{"namespaceSelector": {"matchLabels": {"team": "gw"}}}],
            },
        },
        "monitoring": {
            "enabled": True,
            "interval": "30s",
            "alerts": True,
            "dashboards": True,
            "labels": {"release": "prom"},
        },
    },
    "no policies of the network": {"networkPolicies": {"enabled": False}},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "coordinators without a shared store": (
        {"coordinator": {"replicas": 2}},
        "several coordinators need a store that they share",
    ),
    "growth without a shared store": (
        {"coordinator": {"autoscaling": {"enabled": True}}},
        "several coordinators need a store that they share",
    ),
    "tokens that nobody gave": ({"tokens": {"create": True}}, "tokens.create needs"),
    "a token of agents that nobody gave": (
        {"tokens": {"create": True, "adminToken": "b"}, "agent": {"proof": "token"}},
        "needs tokens.agentToken",
    ),
    "two sources of policies": (
        {
            "coordinator": {
                "resources": {"a.yaml": ""},
                "resourcesConfigMap": "b",
                "kubernetes": {"enabled": False},
            }
        },
        "not both",
    ),
    "files with policies beside the cluster's": (
        {"coordinator": {"resources": {"a.yaml": ""}}},
        "set coordinator.kubernetes.enabled=false",
    ),
    "every namespace, and another": (
        {"coordinator": {"kubernetes": {"namespaces": ["*", "a"]}}},
        "keep it alone",
    ),
    "costs of pods that are not read": (
        {"coordinator": {"kubernetes": {"enabled": False, "podDeletionCost": True}}},
        "podDeletionCost needs coordinator.kubernetes.enabled",
    ),
    "no issuer of agents' certificate": (
        {"tls": {"source": "cert-manager"}},
        "tls.source cert-manager needs tls.issuer.name",
    ),
    "no way of protection": ({"tls": {"source": "self-signed"}}, "source"),
    "gateways that nobody named": (
        {"coordinator": {"route": {"enabled": True}}},
        "coordinator.config.gateways.allowed",
    ),
    "an issuer that nobody named": (
        {
            "coordinator": {
                "route": {"enabled": True, "tls": {"source": "cert-manager"}},
                "config": {"gateways": GATEWAYS},
            }
        },
        "needs coordinator.route.tls.issuer.name",
    ),
    "a socket of one's own": (
        {"agent": {"config": {"pod_resources": "/run/kubelet.sock"}}},
        "pod_resources",
    ),
    "a folder that is none": ({"agent": {"gpu": {"podResourcesDir": "x"}}}, "podResourcesDir"),
    "a listener of one's own": ({"coordinator": {"config": {"http": ":80"}}}, "http"),
    "a word that there is not": ({"coordinator": {"replica": 1}}, "replica"),
    "a wrong type": ({"coordinator": {"replicas": "two"}}, "replicas"),
    "a policy in a file that is not read": (
        {"coordinator": {"resources": {"policy.txt": ""}}},
        "policy.txt",
    ),
}
