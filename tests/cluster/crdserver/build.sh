#!/bin/bash
# Builds crdserver (main.go beside this file) from Debian's own packages of Kubernetes' Go libraries.
# Usage: build.sh WORKDIR OUTFILE.  Needs Debian's keyring and its mirror; installs nothing: packages
# are unpacked under WORKDIR, which can be removed afterwards (4 GB). SUITE: another suite than sid.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); mkdir -p "$1"; work=$(cd "$1" && pwd); out=$2; suite=${SUITE:-sid}
mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources) # that of this machine
mkdir -p "$work"/apt/{lists/partial,cache/archives/partial} "$work"/{debs,root,gopath/src/crdserver}
: > "$work/apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$work/apt/sources.list"
apt=(-o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
     -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache"
     -o Dir::State::status="$work/apt/status" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update -qq
needed=$(apt-cache "${apt[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts \
         --no-breaks --no-replaces --no-enhances golang-k8s-apiextensions-apiserver-dev |
         grep -E '^golang' | sort -u | grep -vxE 'golang-(go|any|src|dbus-dev)')
(cd "$work/debs" && apt-get "${apt[@]}" download -qq $needed)
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done
GOROOT=$(echo "$work"/root/usr/lib/go-1.*); export GOROOT PATH=$GOROOT/bin:$PATH
export GOPATH=$work/gopath:$work/root/usr/share/gocode GOCACHE=$work/gocache CGO_ENABLED=0
export GO111MODULE=off GOPROXY=off GOTOOLCHAIN=local GOFLAGS=
cp "$here/main.go" "$work/gopath/src/crdserver/"
version=$(dpkg-deb -f "$(ls "$work"/debs/golang-k8s-apiextensions-apiserver-dev_*.deb)" Version)
version=${version%-*} # 0.36.4 is Kubernetes 1.36.4
minor=$(echo "$version" | cut -d. -f2); V=k8s.io/component-base/version
go build -ldflags "-s -w -X $V.gitVersion=v1.${version#0.} -X $V.gitMajor=1 -X $V.gitMinor=$minor" \
   -o "$out" crdserver
