#!/bin/bash
# Starts etcd, kube-apiserver 1.20.2, controller-manager, scheduler and hollow nodes, which run no
# containers. In a network namespace of its own: hollow kubelets listen on every address.
# Usage: up.sh BINDIR STATEDIR NODES KUBECTL.  Leaves STATEDIR/kubeconfig, and a STATEDIR/*.pid of each.
set -euo pipefail
bin=$1; mkdir -p "$2"; cd "$2"; state=$PWD; nodes=$3; kubectl=$4
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca 2> /dev/null
certificate() {
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2> /dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out "$1.crt" -extfile <(
    printf 'subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n'
  ) 2> /dev/null
}
certificate server /CN=kube-apiserver; certificate admin "/O=system:masters/CN=admin"
openssl genrsa -out sa.key 2048 2> /dev/null
cat > kubeconfig << Y
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $state/ca.crt}}]
users: [{name: u, user: {client-certificate: $state/admin.crt, client-key: $state/admin.key}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: default}}]
current-context: x
Y
run() { local name=$1; shift; setsid "$@" > "$name.log" 2>&1 & echo $! > "$name.pid"; }
url=http://127.0.0.1:2379; peer=http://127.0.0.1:2380
run etcd etcd --name t --data-dir "$state/etcd" --listen-client-urls $url --advertise-client-urls $url \
  --listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster t=$peer
run apiserver "$bin/kube-apiserver" --bind-address 127.0.0.1 --advertise-address 10.87.1.1 --secure-port 6443 \
  --insecure-port 0 --etcd-servers $url --client-ca-file ca.crt --tls-cert-file server.crt \
  --tls-private-key-file server.key --authorization-mode RBAC --service-account-key-file sa.key \
  --service-account-signing-key-file sa.key --service-account-issuer https://127.0.0.1:6443 \
  --api-audiences https://127.0.0.1:6443 --service-cluster-ip-range 10.96.0.0/24 --allow-privileged=true
for _ in $(seq 90); do sleep 1; "$kubectl" --kubeconfig kubeconfig get --raw /readyz > /dev/null 2>&1 && break; done
run manager "$bin/kube-controller-manager" --kubeconfig kubeconfig --authentication-kubeconfig kubeconfig \
  --authorization-kubeconfig kubeconfig --bind-address 127.0.0.1 --port 0 --leader-elect=false \
  --service-account-private-key-file sa.key --root-ca-file ca.crt --controllers '*,-nodeipam'
run scheduler "$bin/kube-scheduler" --kubeconfig kubeconfig --bind-address 127.0.0.1 --port 0 --leader-elect=false
for i in $(seq "$nodes"); do
  run "hollow$i" "$bin/kubemark" --morph kubelet --name "hollow-$i" --kubeconfig kubeconfig \
    --kubelet-port $((10250 + i * 10)) --kubelet-read-only-port $((10251 + i * 10))
done
