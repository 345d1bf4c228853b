#!/bin/bash
# Builds kube-apiserver, kube-controller-manager, kube-scheduler and kubemark 1.20.2 out of Debian 12's
# source package `kubernetes` (its binary package holds only kubectl).
# Usage: build.sh WORKDIR OUTDIR.  Needs golang-1.19-go golang-github-modern-go-reflect2-dev rsync jq dpkg-dev
set -euo pipefail
mkdir -p "$1" "$2"; out=$(cd "$2" && pwd); cd "$1"; work=$PWD
mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)
mkdir -p apt/{lists/partial,cache/archives/partial}; : > apt/status
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" > apt/sources.list
apt=(-o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
     -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache"
     -o Dir::State::status="$work/apt/status" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update -qq
apt-get "${apt[@]}" source -qq --download-only kubernetes
dpkg-source -x kubernetes_*.dsc src > /dev/null
cd src
# The reflect2 in the source crashes on every custom resource with Go 1.18 or newer; Debian's does not.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/reflect2
rm -f vendor/github.com/modern-go/reflect2/*_test.go
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$PWD/.go CGO_ENABLED=0 GO111MODULE=off GOPROXY=off
export HOME=$work/home KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_TREE_STATE=clean KUBE_GIT_COMMIT=debian
mkdir -p "$HOME" .go/src/k8s.io; ln -sfn ../../.. .go/src/k8s.io/kubernetes
cd .go/src/k8s.io/kubernetes # with modules the old go.mod is refused
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubemark"
cp _output/local/go/bin/kube* "$out/"
