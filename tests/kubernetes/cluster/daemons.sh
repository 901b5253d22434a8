#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first machine of a cluster, as which this runs (node.sh): it has the control plane, too.
# /k is the cluster's state: settings, keys, logs. NODES of the environment: its machines.
cd /k || exit 1
address=$ADDRESS
server=https://$address:6443
export PATH=/opt/kubernetes:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p log pki /run/etcd

pki() {
  openssl genrsa -out sa.key 2048
  openssl rsa -in sa.key -pubout -out sa.pub
  openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=cluster-ca -days 30
  openssl req -newkey rsa:2048 -nodes -keyout api.key -out api.csr -subj /CN=kube-apiserver
  printf 'subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:%s,IP:10.96.0.1,IP:127.0.0.1\n' \
    $address > extensions
  openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 30 \
    -extfile extensions
}
(cd pki && pki 2>/dev/null)
: > pki/tokens.csv
chmod 600 pki/tokens.csv
user() { # NAME USER GROUPS: with a kubeconfig
  token=$(openssl rand -hex 16)
  echo "$token,$2,$1${3:+,$3}" >> pki/tokens.csv
  (umask 077; cat > "pki/$1.conf") <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "$server", certificate-authority: /k/pki/ca.crt}}]
users: [{name: u, user: {token: $token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
K
}
user admin admin system:masters
user controllers system:kube-controller-manager
user scheduler system:kube-scheduler
user proxy system:kube-proxy
for node in $NODES; do user "$node" "system:node:$node" system:nodes; done

etcd --data-dir /run/etcd --listen-client-urls http://127.0.0.1:2379 \
  --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
  --initial-advertise-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync \
  --initial-cluster default=http://127.0.0.1:2380 > log/etcd.log 2>&1 &
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=$address \
  --advertise-address=$address --secure-port=6443 --service-cluster-ip-range=10.96.0.0/16 \
  --tls-cert-file=pki/api.crt --tls-private-key-file=pki/api.key --client-ca-file=pki/ca.crt \
  --token-auth-file=pki/tokens.csv --authorization-mode=Node,RBAC --anonymous-auth=true \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file=pki/sa.pub --service-account-signing-key-file=pki/sa.key \
  --allow-privileged=true --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate=pki/api.crt --kubelet-client-key=pki/api.key \
  --requestheader-client-ca-file=pki/ca.crt --requestheader-allowed-names=kube-apiserver \
  --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User \
  --proxy-client-cert-file=pki/api.crt --proxy-client-key-file=pki/api.key \
  --enable-aggregator-routing=true --enable-admission-plugins=NodeRestriction \
  > log/apiserver.log 2>&1 &

healthy() { curl -sk "$server/readyz" | grep -q ok; }
{
  for _ in $(seq 120); do healthy && break; sleep 0.5; done
  kube-controller-manager --kubeconfig=pki/controllers.conf \
    --authentication-kubeconfig=pki/controllers.conf --authorization-kubeconfig=pki/controllers.conf \
    --bind-address=127.0.0.1 --leader-elect=false --root-ca-file=pki/ca.crt \
    --service-account-private-key-file=pki/sa.key --use-service-account-credentials=true \
    --allocate-node-cidrs=false --horizontal-pod-autoscaler-sync-period=5s \
    --horizontal-pod-autoscaler-initial-readiness-delay=5s \
    --horizontal-pod-autoscaler-cpu-initialization-period=10s > log/controllers.log 2>&1 &
  kube-scheduler --kubeconfig=pki/scheduler.conf --authentication-kubeconfig=pki/scheduler.conf \
    --authorization-kubeconfig=pki/scheduler.conf --bind-address=127.0.0.1 --leader-elect=false \
    > log/scheduler.log 2>&1 &
} &
. /k/worker.sh
