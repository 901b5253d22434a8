#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What every machine of a cluster runs (node.sh): containerd, kubelet, kube-proxy.
cd /k || exit 1
server=https://10.200.0.1:6443
own=/k/$NODE
export PATH=/opt/kubernetes:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p log "$own/cni"
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null
# Of this machine alone: another kubelet beside it has its own.
for controller in /sys/fs/cgroup/*/; do mkdir -p "$controller$CGROUP"; done
for file in cpuset.cpus cpuset.mems; do
  cat "/sys/fs/cgroup/cpuset/$file" > "/sys/fs/cgroup/cpuset/$CGROUP/$file"
done

containerd_settings() {
  cat <<K
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$own/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
K
}
containerd_settings > "$own/containerd.toml"
cat > "$own/cni/10-bridge.conflist" <<K
{"cniVersion": "0.4.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
K
containerd --config "$own/containerd.toml" > "log/containerd-$NODE.log" 2>&1 &
answering() { # within a minute
  for _ in $(seq 120); do "$@" >/dev/null 2>&1 && return; sleep 0.5; done
  echo "$* does not answer" >&2
  exit 1
}
answering ctr version
ctr -n k8s.io images import pause.tar > "log/images-$NODE.log" 2>&1
answering curl -skf "$server/readyz"
touch resolv.conf
cat > "$own/kubelet.yaml" <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $ADDRESS
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
syncFrequency: 10s # by default a minute: so long a changed Secret takes to a pod
K
kubelet --kubeconfig="pki/$NODE.conf" --config="$own/kubelet.yaml" --hostname-override="$NODE" \
  --node-ip="$ADDRESS" --root-dir=/var/lib/kubelet --container-runtime=remote \
  --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
  --feature-gates=GracefulNodeShutdown=false > "log/kubelet-$NODE.log" 2>&1 &
cat > "$own/proxy.yaml" <<K
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 127.0.0.1
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: /k/pki/proxy.conf}
mode: iptables
clusterCIDR: 10.244.0.0/16
hostnameOverride: $NODE
conntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
K
kube-proxy --config="$own/proxy.yaml" > "log/proxy-$NODE.log" 2>&1 &
wait
