#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A cluster of one machine, as which this runs (node.sh). /k is its state: settings, keys, logs.
cd /k || exit 1
address=10.200.0.1
server=https://$address:6443
export PATH=/opt/kubernetes:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p log pki /run/etcd
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null
# Of this machine alone: another kubelet beside it has its own.
for controller in /sys/fs/cgroup/*/; do mkdir -p "$controller$CGROUP"; done
for file in cpuset.cpus cpuset.mems; do
  cat "/sys/fs/cgroup/cpuset/$file" > "/sys/fs/cgroup/cpuset/$CGROUP/$file"
done

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
user node system:node:node1 system:nodes

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

containerd_settings() {
  cat <<K
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
K
}
mkdir -p /etc/containerd /etc/cni/net.d
containerd_settings > /etc/containerd/config.toml
cat > /etc/cni/net.d/10-bridge.conflist <<K
{"cniVersion": "0.4.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
K
containerd > log/containerd.log 2>&1 &
answering() { # within a minute
  for _ in $(seq 120); do "$@" >/dev/null 2>&1 && return; sleep 0.5; done
  echo "$* does not answer" >&2
  exit 1
}
healthy() { curl -sk "$server/readyz" | grep -q ok; }
answering ctr version
ctr -n k8s.io images import pause.tar > log/images.log 2>&1
answering healthy

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
: > resolv.conf
cat > kubelet.yaml <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: /k/pki/ca.crt}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failSwapOn: false
enforceNodeAllocatable: [pods]
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
healthzBindAddress: 127.0.0.1
resolvConf: /k/resolv.conf
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
nodeStatusUpdateFrequency: 5s
K
kubelet --kubeconfig=pki/node.conf --config=kubelet.yaml --hostname-override=node1 \
  --node-ip=$address --root-dir=/var/lib/kubelet --container-runtime=remote \
  --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
  --feature-gates=GracefulNodeShutdown=false > log/kubelet.log 2>&1 &
cat > proxy.yaml <<K
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 127.0.0.1
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: pki/proxy.conf}
mode: iptables
clusterCIDR: 10.244.0.0/16
hostnameOverride: node1
conntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
K
kube-proxy --config=proxy.yaml > log/proxy.log 2>&1 &
wait
