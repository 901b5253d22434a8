#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# In a Debian with its own Go and the packages' sources: the daemons of Kubernetes, to OUT.
# build.sh FOLDER OUT; FOLDER has daemons.go. Nine minutes of CPU, one GB of memory.
set -eu
folder=$1 out=$2
cd "$folder"
apt-get update -qq  # mmdebstrap leaves no lists
apt-get source --download-only -qq kubernetes
source=$folder/gopath/src/k8s.io/kubernetes
mkdir -p "$source/cmd/daemons" "$out"
tar xf kubernetes_1.20*.orig.tar.gz --strip-components=1 -C "$source"
cp daemons.go "$source/cmd/daemons/main.go"
cd "$source"
export HOME=$folder GOPATH=$folder/gopath GOCACHE=$folder/cache CGO_ENABLED=0 GO111MODULE=off
# What the package's own build makes first: the API's descriptions.
go build -o "$folder/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
described=$(
  {
    cd staging/src
    grep -rl '+k8s:openapi-gen=' --include=*.go k8s.io \
      | grep -vE 'code-generator/|sample-apiserver/|zz_generated|_test.go' \
      | xargs -n1 dirname | sort -u | sed 's|^|k8s.io/kubernetes/vendor/|'
    cd ../..
    grep -rl '^// +k8s:openapi-gen=' --include=*.go pkg plugin | grep -vE 'zz_generated|_test.go' \
      | xargs -rn1 dirname | sort -u | sed 's|^|k8s.io/kubernetes/|'
  } | paste -sd,
)
"$folder/openapi-gen" -i "$described" -p k8s.io/kubernetes/pkg/generated/openapi \
  -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
  -r "$folder/violations"
# Without them Helm sees version 0.0.0.
versions=
for package in component-base/version client-go/pkg/version; do
  for pair in gitVersion=v1.20.2 gitMajor=1 gitMinor=20 gitTreeState=archive; do
    versions="$versions -X k8s.io/kubernetes/vendor/k8s.io/$package.$pair"
  done
done
go build -gcflags=all=-dwarf=false -ldflags "-s -w $versions" -o "$out/daemons" ./cmd/daemons
gcc -Os -static -s -DVERSION=1 -o "$out/pause" build/pause/linux/pause.c
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
  ln -sf daemons "$out/$name"
done
